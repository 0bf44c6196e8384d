//! Figures of the operating system about this process; zeros where it has none.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

/// Bytes of a page, and clock ticks of a second, on every Linux that this runs on.
const PAGE: f64 = 4096.0;
const TICKS: f64 = 100.0;

/// Figures of the process, at one moment.
#[derive(Debug, Default)]
pub(super) struct Process {
    virtual_bytes: f64,
    resident_bytes: f64,
    cpu_seconds: f64,
    open_files: f64,
    most_files: f64,
}

impl Process {
    /// Reads them.
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The fields after the name, which is in brackets and may hold anything; the first is the state, field 3.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok()).unwrap_or(0.0);
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let files = files.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let open = fs::read_dir("/proc/self/fd").map_or(0, |files| files.count());
        Self {
            virtual_bytes: field(23),
            resident_bytes: field(24) * PAGE,
            cpu_seconds: (field(14) + field(15)) / TICKS,
            open_files: super::histogram::float(u64::try_from(open).unwrap_or(0)),
            most_files: files.unwrap_or(0.0),
        }
    }

    /// The value of a sample.
    pub(super) fn value(&self, name: &str) -> Option<f64> {
        Some(match name {
            "process_virtual_memory_bytes" => self.virtual_bytes,
            "process_resident_memory_bytes" => self.resident_bytes,
            "process_cpu_seconds_total" => self.cpu_seconds,
            "process_open_fds" => self.open_files,
            "process_max_fds" => self.most_files,
            _ => return None,
        })
    }
}

/// Seconds since 1970.
pub(super) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
