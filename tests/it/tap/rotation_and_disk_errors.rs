//! Files that fill, move away, cannot be written or do not answer: recording suffers, traffic does not.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use vllm_vcr::recording::trace::{CreateMode, RotationLimits};

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, exchange, post},
    running::vcr,
    tapping::Tapping,
};

const WHOLE: &str = r#"{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;

async fn engine() -> Upstream {
    Upstream::start(|_| Script { pieces: answer("200 OK", WHOLE), end: End::KeepAlive }).await
}

async fn ask(tap: &Tapping, times: usize) {
    for _ in 0..times {
        assert_eq!(exchange(tap.address, &post(CHAT, r#"{"messages":[]}"#)).await.body(), WHOLE);
    }
}

#[tokio::test]
async fn full_files_are_followed_by_others_and_nothing_is_lost() {
    let upstream = engine().await;
    let tap = Tapping::start(upstream.address, |setup| {
        setup.limits = RotationLimits { records: Some(3), ..RotationLimits::default() };
    })
    .await;
    ask(&tap, 7).await;
    let (report, traces) = tap.stop().await;
    assert_eq!((report.recorder.written, report.recorder.files), (7, 3));
    assert_eq!(traces.iter().map(|trace| trace.records.len()).sum::<usize>(), 7);
    assert!(traces.iter().all(|trace| trace.end.is_some() && trace.warnings.is_empty()));
}

#[tokio::test]
async fn a_rotation_goes_on_under_the_same_name_where_the_file_was_moved_away() {
    let upstream = engine().await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    ask(&tap, 1).await;
    let path = tap.folder.path().join("trace.jsonl.gz");
    fs::rename(&path, tap.folder.path().join("moved.jsonl.gz")).unwrap();
    tap.handle.rotate();
    tap.until("vcr_trace_files", 2.0).await;
    ask(&tap, 1).await;
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (_, traces) = tap.stop().await;
    assert_eq!(
        traces.iter().map(|trace| (trace.records.len(), trace.end.is_some())).collect::<Vec<_>>(),
        [(1, true); 2]
    );
}

#[tokio::test]
async fn a_file_that_was_removed_is_begun_anew() {
    let upstream = engine().await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    ask(&tap, 2).await;
    tap.until("vcr_records_written_total", 2.0).await;
    fs::remove_file(tap.folder.path().join("trace.jsonl.gz")).unwrap();
    tap.until("vcr_trace_files", 2.0).await;
    ask(&tap, 1).await;
    let (_, traces) = tap.stop().await;
    assert_eq!(traces.iter().map(|trace| trace.records.len()).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn two_taps_do_not_write_one_file() {
    let upstream = engine().await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    ask(&tap, 1).await;
    for mode in [CreateMode::Append, CreateMode::Truncate] {
        let mut second = crate::support::tapping::setup(&format!("http://{}", upstream.address), tap.folder.path());
        second.config.create = mode;
        let refused = vllm_vcr::tap::Tap::start(second).await.unwrap_err();
        let cause = std::error::Error::source(&refused).unwrap().to_string();
        assert!(cause.contains("trace.jsonl.gz: another program is writing to it"), "{cause}");
    }
    ask(&tap, 1).await;
    let (_, records) = tap.records().await;
    assert_eq!(records.len(), 2);
}

#[tokio::test]
async fn a_restart_goes_on_beside_the_old_file() {
    let upstream = engine().await;
    let tap = Tapping::start(upstream.address, |setup| {
        fs::write(&setup.config.trace_out, "not mine").unwrap();
        setup.config.create = CreateMode::Next;
    })
    .await;
    ask(&tap, 1).await;
    let old = tap.folder.path().join("trace.jsonl.gz");
    assert_eq!(fs::read_to_string(&old).unwrap(), "not mine");
    fs::remove_file(old).unwrap();
    let (_, records) = tap.records().await;
    assert_eq!(records.len(), 1);
}

#[tokio::test]
async fn a_trace_that_cannot_be_written_at_the_start_is_tried_for_again() {
    let upstream = engine().await;
    let tap = Tapping::start(upstream.address, |setup| {
        // A full device, under the name of the trace.
        std::os::unix::fs::symlink("/dev/full", &setup.config.trace_out).unwrap();
        setup.config.create = CreateMode::Truncate;
        setup.start_without_file = true;
    })
    .await;
    ask(&tap, 2).await;
    tap.until("vcr_records_dropped_total{reason=\"write_failed\"}", 2.0).await;
    tap.until("vcr_recording", 1.0).await;
    ask(&tap, 1).await;
    fs::remove_file(tap.folder.path().join("trace.jsonl.gz")).unwrap();
    let (report, traces) = tap.stop().await;
    assert_eq!((report.recorder.written, report.recorder.write_failed), (1, 2));
    // The next file has the number of lost records.
    assert_eq!(traces[0].end.as_ref().unwrap().dropped, 2);
}

#[tokio::test]
async fn a_file_that_breaks_is_left_and_another_one_begun() {
    let upstream = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("trace.jsonl.gz");
    let mut reader = read_pipe(&pipe);
    let tap = Tapping::start(upstream.address, |setup| {
        setup.config.trace_out = pipe.clone();
        setup.config.create = CreateMode::Truncate;
    })
    .await;
    // Takes the first line and goes away.
    assert!(reader.read(&mut [0; 16]).unwrap() > 0);
    drop(reader);
    ask(&tap, 3).await;
    tap.until("vcr_records_dropped_total{reason=\"write_failed\"}", 3.0).await;
    tap.until("vcr_recording", 1.0).await;
    ask(&tap, 2).await;
    let (report, _) = tap.stop().await;
    fs::remove_file(pipe).unwrap();
    let traces = crate::support::tapping::traces(folder.path());
    assert_eq!((report.forwarded, report.recorder.write_failed, report.recorder.written), (5, 3, 2));
    assert_eq!((traces[0].records.len(), traces[0].end.as_ref().unwrap().dropped), (2, 3));
    assert!(report.recorder.write_error.is_some());
}

/// Makes a pipe and its reader.
fn read_pipe(pipe: &Path) -> fs::File {
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    // To open it for reading alone would wait for a writer.
    fs::File::options().read(true).write(true).open(pipe).unwrap()
}

/// A tap whose disk takes nothing any more after a while, and what lets the disk go.
async fn hanging(upstream: &Upstream, pipe: PathBuf) -> (Tapping, impl FnOnce()) {
    let reader = read_pipe(&pipe);
    let tap = Tapping::start(upstream.address, |setup| {
        setup.config.trace_out = pipe;
        setup.config.create = CreateMode::Truncate;
        setup.content.requests = true;
        // The recorder gives a sign of life twice a second: half of this is two of them.
        setup.disk_timeout = Duration::from_secs(2);
    })
    .await;
    (tap, move || drop(reader))
}

#[tokio::test]
async fn health_tells_of_a_disk_that_does_not_answer() {
    let upstream = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let (tap, let_go) = hanging(&upstream, folder.path().join("trace.jsonl")).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap();
    let serving = tokio::spawn(tap.handle.clone().serve(listener, std::future::pending()));
    let health = b"GET /health/recording HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(admin, health).await.status, 200);
    let body = format!(r#"{{"messages":[],"x":"{}"}}"#, "y".repeat(100_000));
    let unwell = async {
        loop {
            assert_eq!(exchange(tap.address, &post(CHAT, &body)).await.body(), WHOLE);
            let told = exchange(admin, health).await;
            if told.status == 503 {
                return told.body();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(60), unwell).await.unwrap();
    assert!(told.starts_with("the disk has not answered for "), "{told}");
    assert_eq!(tap.metric("vcr_recording"), 0.0);
    serving.abort();
    let_go();
    let (report, _) = tap.stop().await;
    assert_eq!(report.recorder.written + report.recorder.write_failed, report.forwarded);
}

#[tokio::test]
async fn a_disk_that_does_not_answer_delays_no_request() {
    let upstream = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let (tap, let_go) = hanging(&upstream, folder.path().join("trace.jsonl")).await;
    // More than the pipe holds.
    let body = format!(r#"{{"messages":[],"x":"{}"}}"#, "y".repeat(100_000));
    for _ in 0..8 {
        assert_eq!(exchange(tap.address, &post(CHAT, &body)).await.body(), WHOLE);
    }
    tap.until_is("vcr_recording", 0.0).await;
    ask(&tap, 2).await;
    assert!(tap.metric("vcr_recorder_queue_length") > 0.0);
    let (report, _) = {
        let stopping = tap.stop();
        tokio::time::timeout(Duration::from_secs(60), stopping).await.unwrap()
    };
    assert_eq!(report.forwarded, 10);
    assert!(report.recorder.write_failed > 0, "{report:?}");
    assert_eq!(report.recorder.write_error.as_deref(), Some("the disk did not answer at the end"));
    assert_eq!(report.recorder.written + report.recorder.write_failed, 10, "{report:?}");
    let_go();
}

#[tokio::test]
async fn a_disk_that_does_not_answer_once_all_is_written_costs_no_record() {
    let upstream = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("trace.jsonl.gz");
    let (tap, let_go) = hanging(&upstream, pipe.clone()).await;
    ask(&tap, 2).await;
    tap.until("vcr_records_written_total", 2.0).await;
    // Fills the pipe, so that the end of the trace finds no place.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().try_into().unwrap();
    let mut filling = fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&pipe).unwrap();
    for size in [4096, 1] {
        while filling.write(&vec![0; size]).is_ok() {}
    }
    let (report, _) = tap.stop().await;
    let recorder = report.recorder;
    assert_eq!(
        (recorder.written, recorder.write_failed, recorder.write_error, recorder.is_failing),
        (2, 0, None, false)
    );
    let_go();
}

#[test]
fn a_tap_says_which_file_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("day.jsonl"), "mine").unwrap();
    let tap = ["tap", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--trace-out"];
    let output = vcr(&[&tap[..], &[&path("day.jsonl"), "--next", "--", "true"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("recording to {} (", path("day.1.jsonl"))), "{said}");
    assert_eq!(std::fs::read_to_string(path("day.jsonl")).unwrap(), "mine");
}
