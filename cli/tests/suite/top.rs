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
        "synthetic-writer.1 (pid ",
        "a first reader; 2 steps are unread",
        "samite-agent",
        "coordinator of streams",
        "streams: 1",
        "allocated: memory of the machine",
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

/// A unit that waits for another one outside of any stream is shown, with the process that is
/// stopped.
#[test]
fn a_unit_that_waits_for_a_stopped_one() {
    let solve = "-n 2 --config fabric.deadline=300s laplace-array --no-check";
    let size = "--rows 64 --cols 64 --steps 1000000000";
    let words = format!("{solve} {size}");
    let words: Vec<&str> = words.split(' ').collect();
    let mut job = Job::start("halted", &words);
    let pid_of = |state: &Value, rank: u64| {
        let units = state["units"].as_array().map_or(&[][..], Vec::as_slice);
        let is_it = |unit: &&Value| unit["program"] == "laplace-array" && unit["rank"] == rank;
        units
            .iter()
            .find(is_it)
            .and_then(|unit| unit["pid"].as_i64())
    };
    let state = job.wait(|state| pid_of(state, 1).is_some());
    let pid = pid_of(&state, 1).expect("it is there");
    let stopped = rustix::process::Pid::from_raw(pid as i32).expect("a process");
    let send = |signal| rustix::process::kill_process(stopped, signal).expect("it runs");
    send(rustix::process::Signal::STOP);
    let waits_on = |state: &Value| {
        let waits = state["waits"].as_array()?;
        let wait = waits.iter().find(|wait| wait["who"] == "laplace-array.0")?;
        assert_eq!(wait["stream"], Value::Null);
        Some(wait["waits_on"][0].clone())
    };
    let state = job.wait(|state| waits_on(state).is_some_and(|on| on["state"] == "stopped"));
    let on = waits_on(&state).expect("it was just there");
    assert_eq!(
        (&on["name"], &on["pid"]),
        (&"laplace-array.1".into(), &pid.into())
    );
    let text = output(&["top", "--domain", &job.domain, "--once"]).expect("it is there");
    let sentence = format!("laplace-array.1 (pid {pid}, stopped)");
    assert!(text.contains(&sentence), "{text}");
    send(rustix::process::Signal::CONT);
    job.wait(|state| waits_on(state).is_none_or(|on| on["state"] != "stopped"));
}

/// The chunks of a job, at all of its servers, of which `samite top` has no topology.
#[test]
fn chunks_of_several_servers() {
    let workflow = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../workflows/video-servers.toml"
    );
    let size = "--size 64x48 --frames 1000000000 --workers 2";
    let mut words = vec![workflow, "--config", "fabric.deadline=300s"];
    words.extend(size.split(' '));
    let mut job = Job::start("chunks", &words);
    let chunks = |state: &Value| state["chunks"].as_array().cloned().unwrap_or_default();
    let at = |state: &Value, home: &str| {
        let mut chunks = chunks(state).into_iter();
        chunks.find(|chunk| {
            chunk["home"].as_str() == Some(home) && chunk["commits"].as_u64() > Some(0)
        })
    };
    let homes = [
        "the agent",
        "chunk-server.0",
        "chunk-server.1",
        "chunk-server.2",
    ];
    // Frames of two workers have few names: not each server has some.
    let count = |state: &Value| {
        homes
            .iter()
            .filter(|home| at(state, home).is_some())
            .count()
    };
    let state = job.wait(|state| count(state) >= 3);
    for chunk in chunks(&state) {
        let home = chunk["home"].as_str().expect("a name");
        assert!(homes.contains(&home), "{chunk}");
        assert!(
            chunk["name"].as_str().is_some_and(|name| !name.is_empty()),
            "{chunk}"
        );
    }
    let mut names: Vec<String> = chunks(&state)
        .iter()
        .map(|chunk| chunk["name"].to_string())
        .collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "each chunk is shown once");
    let text = output(&["top", "--domain", &job.domain, "--once"]).expect("it is there");
    assert!(text.contains("chunk-server."), "{text}");
}

/// Without --domain, and with several domains, none of them is joined.
#[test]
fn of_several_domains_one_has_to_be_chosen() {
    let mut jobs = ["first-of-two", "second-of-two"].map(|job| Job::start(job, &["sleep", "1000"]));
    for job in &mut jobs {
        job.wait(|_| true);
    }
    for how in ["--once", "--json"] {
        let told = crate::domain::samite(&["top", how])
            .env_remove("SAMITE_DOMAIN")
            .output()
            .expect("samite can be started");
        assert_eq!(told.status.code(), Some(2), "{told:?}");
        let error = String::from_utf8_lossy(&told.stderr);
        assert!(
            error.contains("--domain NAME") && told.stdout.is_empty(),
            "{told:?}"
        );
        for job in &jobs {
            assert!(
                error.contains(&format!("\n  {} (agent ", job.domain)),
                "{error}"
            );
        }
    }
    // As for programs that are started by hand.
    let text = crate::domain::samite(&["top", "--once"])
        .env("SAMITE_DOMAIN", &jobs[1].domain)
        .output()
        .expect("samite can be started");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.starts_with(&format!("domain {}: ", jobs[1].domain)),
        "{text}"
    );
}

/// The live view on a terminal of its own, 80 columns wide and 24 lines high.
struct Live {
    script: std::process::Child,
    drawn: BufReader<std::process::ChildStdout>,
    seen: Vec<u8>,
}

impl Live {
    fn start(job: &Job, options: &str, variables: &[(&str, &str)]) -> Live {
        let live = format!(
            "stty cols 80 rows 24; exec {} top --domain {} {options}",
            env!("CARGO_BIN_EXE_samite"),
            job.domain
        );
        // It gives a command a terminal.
        let mut script = Command::new("script")
            .args(["-qec", &live, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script, of util-linux, can be started");
        let drawn = BufReader::new(script.stdout.take().expect("it is a pipe"));
        let seen = Vec::new();
        let mut live = Live {
            script,
            drawn,
            seen,
        };
        // The keyboard is read key by key before the view takes the whole screen.
        live.until(b"\x1b[?1049h");
        live
    }

    /// Reads until this is drawn.
    fn until(&mut self, what: &[u8]) {
        let from = self.seen.len();
        while !self.seen[from..].ends_with(what) {
            let count = self.drawn.read_until(what[what.len() - 1], &mut self.seen);
            assert_ne!(count.expect("it is drawn"), 0, "{}", self.text());
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// The process id of the view.
    fn pid(&self) -> rustix::process::Pid {
        let script = self.script.id();
        let children = format!("/proc/{script}/task/{script}/children");
        let children = std::fs::read_to_string(children).expect("it runs");
        let pid = children
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok());
        rustix::process::Pid::from_raw(pid.expect("the view")).expect("a process")
    }

    /// Waits for the end; returns all that was drawn. The terminal is as it was before.
    fn end(mut self) -> String {
        self.drawn
            .read_to_end(&mut self.seen)
            .expect("the view ends");
        let status = self.script.wait().expect("it was started");
        let text = self.text();
        assert!(status.success(), "{status}: {text}");
        let (shows, leaves) = (text.rfind("\x1b[?25h"), text.rfind("\x1b[?1049l"));
        assert!(
            shows > text.rfind("\x1b[?25l") && leaves > text.rfind("q: quit"),
            "{text:?}"
        );
        text
    }
}

fn idle(test: &str) -> Job {
    let mut job = Job::start(test, &["sleep", "1000"]);
    job.wait(|_| true);
    job
}

/// However short the time between two updates is, the keyboard is looked at.
#[test]
fn the_live_view_ends_by_a_key() {
    let job = idle("live");
    for (key, interval) in [(b"q", "0s"), (b"\x1b", "0s"), (b"\x03", "1h")] {
        let mut live = Live::start(&job, &format!("--interval {interval}"), &[]);
        let mut keys = live.script.stdin.take().expect("it is a pipe");
        live.until(b"q: quit");
        // An arrow is not Escape.
        keys.write_all(b"\x1b[A").expect("it is read");
        keys.write_all(key).expect("it is read");
        let text = live.end();
        assert!(
            text.contains("\x1b[1m") || text.contains("\x1b[38;5;"),
            "{text:?}"
        );
    }
}

/// A signal ends it in the same way: the terminal is as it was before.
#[test]
fn the_live_view_ends_by_a_signal() {
    use rustix::process::{Signal, kill_process};
    let job = idle("signalled");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut live = Live::start(&job, "--interval 1h", &[("NO_COLOR", "1")]);
        live.until(b"q: quit");
        kill_process(live.pid(), signal).expect("it runs");
        let text = live.end();
        assert!(
            !text.contains("\x1b[1m") && !text.contains("\x1b[38;5;"),
            "{text:?}"
        );
    }
}

/// An error, here the end of the domain, is told after the terminal is as it was before.
#[test]
fn the_live_view_ends_with_its_domain() {
    let job = idle("ended");
    let mut live = Live::start(&job, "--interval 10ms", &[]);
    live.until(b"q: quit");
    drop(job);
    live.drawn
        .read_to_end(&mut live.seen)
        .expect("the view ends");
    let status = live.script.wait().expect("it was started");
    assert!(!status.success(), "{status}");
    let text = live.text();
    let leaves = text.rfind("\x1b[?1049l").expect("it leaves the screen");
    assert!(text[leaves..].contains("samite:"), "{text:?}");
}

/// It is drawn anew when the terminal changes its size, not only after an interval.
#[test]
fn the_live_view_fits_after_a_resize() {
    let job = idle("resized");
    let mut live = Live::start(&job, "--interval 1h", &[("NO_COLOR", "1")]);
    live.until(b"\x1b[24;1Hq: quit");
    let terminal = format!("/proc/{}/fd/0", live.pid().as_raw_nonzero());
    let terminal = std::fs::read_link(terminal).expect("its terminal");
    let resized = Command::new("stty")
        .args(["cols", "40", "rows", "10"])
        .stdin(std::fs::File::open(terminal).expect("it is open"))
        .status();
    assert!(resized.expect("stty can be started").success());
    live.until(b"\x1b[10;1Hq: quit");
    rustix::process::kill_process(live.pid(), rustix::process::Signal::TERM).expect("it runs");
    live.end();
}

/// Colours are decided as for all other output.
#[test]
fn the_live_view_has_the_colours_that_were_asked_for() {
    let job = idle("coloured");
    for (options, no_color, expected) in [
        ("--interval 1h --color always", "1", true),
        ("--interval 1h --color never", "", false),
    ] {
        let mut live = Live::start(&job, options, &[("NO_COLOR", no_color)]);
        live.until(b"q: quit");
        rustix::process::kill_process(live.pid(), rustix::process::Signal::TERM).expect("it runs");
        let text = live.end();
        let is_colored = text.contains("\x1b[1m") || text.contains("\x1b[38;5;");
        assert_eq!(is_colored, expected, "{options}: {text:?}");
    }
}
