//! Figures of the operating system about this process, zeros where it has none, and those that Python would have.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use base::stats::{
    exposition::{ByLabel, MetricFamily, counter, counter_by, gauge, labelled},
    histogram::float,
};

/// Bytes of a page, and clock ticks of a second, on every Linux that this runs on.
const PAGE: f64 = 4096.0;
const TICKS: f64 = 100.0;

#[derive(Debug, Default)]
pub(super) struct ProcessFigures {
    virtual_bytes: f64,
    resident_bytes: f64,
    /// Seconds since 1970.
    started: f64,
    cpu_seconds: f64,
    open_files: f64,
    most_files: f64,
}

/// Families of Python's garbage, of which there is none.
pub(super) const GARBAGE: [MetricFamily<ProcessFigures>; 3] = [
    counter_by("python_gc_objects_collected", "Objects collected during gc", "generation", generations),
    counter_by("python_gc_objects_uncollectable", "Uncollectable objects found during GC", "generation", generations),
    counter_by("python_gc_collections", "Number of times this generation was collected", "generation", generations),
];

pub(super) const FAMILIES: [MetricFamily<ProcessFigures>; 6] = [
    gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", |p| p.virtual_bytes),
    gauge("process_resident_memory_bytes", "Resident memory size in bytes.", |p| p.resident_bytes),
    gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", |p| p.started),
    counter("process_cpu_seconds", "Total user and system CPU time spent in seconds.", |p| p.cpu_seconds),
    gauge("process_open_fds", "Number of open file descriptors.", |p| p.open_files),
    gauge("process_max_fds", "Maximum number of open file descriptors.", |p| p.most_files),
];

fn generations(_: &ProcessFigures) -> ByLabel<'_> {
    labelled(["0", "1", "2"].map(|generation| (generation, 0.0)))
}

impl ProcessFigures {
    /// Reads them; the process counts since `started`.
    pub(super) fn now(started: f64) -> Self {
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
            started,
            cpu_seconds: (field(14) + field(15)) / TICKS,
            open_files: float(u64::try_from(open).unwrap_or(0)),
            most_files: files.unwrap_or(0.0),
        }
    }
}

/// Seconds since 1970.
pub(super) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
