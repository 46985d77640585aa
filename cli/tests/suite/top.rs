//! `samite top` beside a stream that is blocked: who, how much, and whom it waits for.

use crate::domain::{Job, output};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

#[test]
fn a_writer_that_nobody_reads() {
    let write = "-n 2 --config fabric.deadline=300s synthetic-writer --shape 64,1024 --steps 9";
    let words: Vec<&str> = write.split(' ').collect();
    let mut job = Job::start("unread", &words);
    // Both ranks wait for the third step.
    let state = job.wait(|state| crate::domain::waiting(state, "waits_for", "a first reader") == 2);
    let stream = &state["streams"][0];
    assert_eq!(stream["name"], "synthetic");
    assert_eq!(stream["writer"], "synthetic-writer");
    assert_eq!(
        (&stream["ranks_here"], &stream["ranks"]),
        (&2.into(), &2.into())
    );
    let step = 64 * 1024 * 8;
    assert_eq!(
        (&stream["steps"], &stream["bytes"]),
        (&2.into(), &(2 * step).into())
    );
    let readers = &stream["readers"][0];
    assert_eq!(readers["name"], Value::Null);
    assert_eq!(readers["queued_steps"], 2);
    let held = stream["memory"].as_u64().expect("a number");
    assert!(held >= 2 * step && held < 2 * step + step / 8, "{held}");
    let block_store = &state["block_stores"][0];
    assert_eq!(
        block_store["granted"], held,
        "all that is granted is the stream's"
    );
    assert!(block_store["used"].as_u64() >= Some(held), "{block_store}");
    let owns = |service: usize, what: usize| {
        let owned = &state["services"][service]["owns"][what];
        (owned["what"].as_str(), owned["amount"].as_u64())
    };
    assert_eq!(state["services"][0]["name"], "coordinator of streams");
    assert_eq!(owns(0, 0), (Some("streams"), Some(1)));
    assert_eq!(state["services"][1]["name"], "block store");
    assert_eq!(
        owns(1, 1),
        (Some("shared memory"), block_store["used"].as_u64())
    );
    let writers = state["units"].as_array().expect("a list");
    let writers = writers
        .iter()
        .filter(|unit| unit["program"] == "synthetic-writer");
    let pids: Vec<&Value> = writers.map(|unit| &unit["pid"]).collect();
    let waits = state["waits"].as_array().expect("a list");
    for (rank, wait) in waits.iter().enumerate() {
        assert_eq!(wait["who"], format!("synthetic-writer.{rank}"));
        assert_eq!(wait["waits_for"], "a first reader; 2 steps are unread");
        assert!(pids.contains(&&wait["pid"]), "{wait} of {pids:?}");
    }
    let text = output(&["top", "--domain", &job.domain, "--once"]).expect("it is there");
    for said in [
        "synthetic-writer 2/2",
        "nobody yet",
        "1.0 MiB",
        "synthetic-writer.1",
        "a first reader; 2 steps are unread",
        "samite-agent",
        "coordinator of streams",
        "streams: 1",
    ] {
        assert!(text.contains(said), "{said}? {text}");
    }
    assert!(
        !text.contains("samite-top"),
        "it does not show itself: {text}"
    );
}

#[test]
fn a_domain_that_is_not_there_is_named() {
    let error = output(&["top", "--domain", "nowhere-at-all", "--once"]).unwrap_err();
    assert!(error.contains("nowhere-at-all"), "{error}");
}

/// However short the time between two updates is, the keyboard is looked at.
#[test]
fn the_live_view_ends_by_a_key() {
    let mut job = Job::start("live", &["sleep", "1000"]);
    job.wait(|_| true);
    let live = format!(
        "exec {} top --domain {} --interval 0s",
        env!("CARGO_BIN_EXE_samite"),
        job.domain
    );
    // It gives a command a terminal.
    let mut script = Command::new("script")
        .args(["-qec", &live, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script, of util-linux, can be started");
    let mut drawn = BufReader::new(script.stdout.take().expect("it is a pipe"));
    // The keyboard is read key by key before the view takes the whole screen.
    let mut seen = Vec::new();
    while !seen.ends_with(b"\x1b[?1049h") {
        let count = drawn.read_until(b'h', &mut seen).expect("a view is drawn");
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&seen));
    }
    let mut keys = script.stdin.take().expect("it is a pipe");
    keys.write_all(b"q").expect("it is read");
    drawn.read_to_end(&mut seen).expect("the view ends");
    let status = script.wait().expect("it was started");
    assert!(status.success(), "{status}");
}
