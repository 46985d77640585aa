//! `samite trace`: what a run of the video did with its chunks.

use crate::domain::{output, samite};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const VIDEO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../workflows/video.toml");

/// Runs the video with an event log in that folder.
fn video(level: &str, folder: &Path) {
    let level = format!("dsm.log={level}");
    let folder = format!("dsm.log_dir={}", folder.display());
    let words = [
        "run",
        VIDEO,
        "--config",
        &level,
        "--config",
        &folder,
        "--size",
        "320x200",
        "--frames",
        "40",
        "--workers",
        "3",
        "--via",
        "dsm",
    ];
    output(&words).expect("the video runs");
}

fn trace(folder: &Path, words: &[&str]) -> Result<String, String> {
    let folder = folder.display().to_string();
    output(&[&["trace", &folder], words].concat())
}

#[test]
fn a_run_is_shown_exported_and_checked() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    video("full", folder.path());
    let export = folder.path().join("trace.json");
    let path = export.display().to_string();
    let said = trace(folder.path(), &["--check", "--export", &path]).expect("it is consistent");
    for part in [
        "source.0",
        "worker.2",
        "sink.0",
        "slowest waits",
        ": consistent",
    ] {
        assert!(said.contains(part), "{part}? {said}");
    }
    let text = std::fs::read_to_string(&export).expect("the trace");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    let of = |phase: &str| {
        let events = events.iter().filter(|event| event["ph"] == phase);
        events.collect::<Vec<&Value>>()
    };
    let names: BTreeSet<&str> = of("M")
        .iter()
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    let has = |name: &str| names.iter().any(|one| one.contains(name));
    assert!(has("source.0") && has("server: "), "{names:?}");
    let slices = of("X");
    let commits = slices.iter().filter(|slice| slice["cat"] == "commit");
    let commits = commits.count();
    assert!(commits >= 80, "{commits} commits of 40 frames in and out");
    let ids = |phase: &str| {
        let ids = of(phase)
            .into_iter()
            .filter_map(|event| event["id"].as_u64());
        ids.collect::<BTreeSet<u64>>()
    };
    assert!(ids("s").len() >= 40, "{} arrows", ids("s").len());
    assert_eq!(ids("s"), ids("f"));
    // Slices of a track do not overlap, or Perfetto shows them wrongly.
    let mut ends = std::collections::BTreeMap::new();
    let mut sorted = slices;
    let number = |event: &Value, key: &str| event[key].as_f64().expect("a number");
    sorted.sort_by(|a, b| number(a, "ts").total_cmp(&number(b, "ts")));
    for slice in sorted {
        let track = (slice["pid"].as_u64(), slice["tid"].as_u64());
        let end: &mut f64 = ends.entry(track).or_default();
        assert!(number(slice, "ts") >= *end - 0.001, "{slice} before {end}");
        *end = number(slice, "ts") + number(slice, "dur");
    }
}

#[test]
fn counters_are_shown() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    video("counters", folder.path());
    let said = trace(folder.path(), &[]).expect("it is shown");
    for part in ["source.0", "counters, complete"] {
        assert!(said.contains(part), "{part}? {said}");
    }
    let refused = trace(folder.path(), &["--check"]).expect_err("there are no records");
    assert!(refused.contains("nothing could be checked"), "{refused}");
}

/// The agent has recorded all when a job has ended, however short that was.
#[test]
fn a_short_run_is_checked_to_its_end() {
    for _ in 0..3 {
        let folder = tempfile::tempdir().expect("a scratch folder");
        video("full", folder.path());
        let said = trace(folder.path(), &["--check"]).expect("it is consistent");
        assert!(said.contains(": consistent"), "{said}");
        assert!(!said.contains("not checked"), "{said}");
    }
}

#[test]
fn what_is_no_log_is_said() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let nothing = trace(folder.path(), &[]).expect_err("there is none");
    assert!(nothing.contains("has no event logs"), "{nothing}");
    let missing = trace(&folder.path().join("missing"), &[]).expect_err("there is none");
    assert!(missing.contains("cannot read"), "{missing}");
    let file = folder.path().join("a.dsmlog");
    std::fs::write(&file, "not a log").expect("a scratch folder");
    let foreign = trace(folder.path(), &[]).expect_err("it is none");
    assert!(foreign.contains("a.dsmlog is no event log"), "{foreign}");
}

/// A process that was killed as it began its log does not make the others' logs useless.
#[test]
fn a_log_that_was_not_begun_is_named_and_left_out() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    video("full", folder.path());
    let runs = std::fs::read_dir(folder.path())
        .expect("a folder")
        .flatten();
    let run = runs.map(|run| run.path()).next().expect("the run has one");
    std::fs::write(run.join("worker.7-9.1.dsmlog"), "").expect("a file");
    let run = run.display().to_string();
    let traced = samite(&["trace", &run, "--check"]).output();
    let traced = traced.expect("samite can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, noted) = (text(&traced.stdout), text(&traced.stderr));
    assert!(traced.status.success(), "{noted}");
    assert!(said.contains(": consistent"), "{said}");
    let expected = "worker.7-9.1.dsmlog is left out: it ends inside its header";
    assert!(noted.contains(expected), "{noted}");
}

/// An export that is killed leaves no part of a file, and the last one is what it was.
#[test]
fn an_export_that_is_killed_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let logs = folder.path().join("logs");
    video("full", &logs);
    let exports = folder.path().join("exports");
    std::fs::create_dir(&exports).expect("a folder");
    let export = exports.join("trace.json");
    std::fs::write(&export, "of the last run").expect("a file");
    // The system kills a process that writes more than it may to a file.
    let script = r#"ulimit -c 0; ulimit -f 8; exec "$0" trace "$1" --export "$2""#;
    let killed = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_samite")])
        .args([&logs, &export])
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .output()
        .expect("sh can be started");
    let signal = killed.status.signal();
    assert_eq!(signal, Some(Signal::XFSZ.as_raw()), "{killed:?}");
    let left = std::fs::read_dir(&exports).expect("a folder").flatten();
    let left: Vec<PathBuf> = left.map(|entry| entry.path()).collect();
    assert_eq!(left, [export.as_path()]);
    let text = std::fs::read_to_string(&export).expect("a file");
    assert_eq!(text, "of the last run");
    let path = export.display().to_string();
    trace(&logs, &["--export", &path]).expect("it is exported");
    let text = std::fs::read_to_string(&export).expect("a file");
    serde_json::from_str::<Value>(&text).expect("JSON");
}
