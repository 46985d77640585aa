//! The shipped workflows with each method and each policy: a setting away, right with all of them,
//! and what makes a method another one than the others is seen.

use crate::domain::{Job, output, waiting};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const METHODS: [&str; 5] = ["stream", "local", "server", "graph", "file"];
const POLICIES: [&str; 6] = [
    "block",
    "drop_oldest",
    "drop_newest",
    "latest",
    "every 3",
    "spill",
];

fn workflow(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../workflows")
        .join(name)
}

/// Runs a workflow with these settings of streams, which must find its own result to be right; the
/// stream's steps are in files afterwards with the method `file` alone.
fn runs((name, stream): (&str, &str), parameters: &str, method: &str, policy: &str) {
    let folder = tempfile::tempdir().expect("a folder for what is written");
    let servers = if method == "server" { "2" } else { "0" };
    let output = Command::new(env!("CARGO_BIN_EXE_samite"))
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .current_dir(folder.path())
        .arg("run")
        .arg(workflow(name))
        .args(parameters.split_whitespace())
        .args(["--servers", servers])
        .args(["--config", &format!("stage.method={method}")])
        .args(["--config", &format!("stage.policy={policy}")])
        .output()
        .expect("samite can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("SUCCESSFUL"),
        "{name}, {method}, {policy}: {text}{errors}"
    );
    let file = folder.path().join("samite-streams").join(stream);
    let bytes = std::fs::metadata(file.join("rank-0.samite")).map_or(0, |file| file.len());
    assert_eq!(bytes > 4096, method == "file", "{name}, {method}: {bytes}");
}

#[test]
fn the_synthetic_stream_is_right_with_each_method_and_policy() {
    let parameters = "--shape 40,30 --steps 11 --pattern columns --readers 3";
    let name = ("synthetic.toml", "synthetic");
    for method in METHODS {
        runs(name, parameters, method, "block");
    }
    for policy in POLICIES {
        runs(name, parameters, "stream", policy);
    }
}

#[test]
fn moments_are_right_with_each_method_and_policy() {
    let parameters = "--size 12 --steps 11 --readers 2";
    let name = ("laplace.toml", "laplace");
    for method in METHODS {
        runs(name, parameters, method, "block");
    }
    for policy in POLICIES {
        runs(name, parameters, "stream", policy);
    }
}

/// The synthetic workflow, in a domain of its own.
fn start(test: &str, parameters: &str, method: &str) -> Job {
    let path = workflow("synthetic.toml").display().to_string();
    let method = format!("stage.method={method}");
    let fixed = ["--config", "fabric.deadline=300s", "--config", &method];
    let words = parameters.split_whitespace();
    let words: Vec<&str> = [path.as_str()]
        .into_iter()
        .chain(fixed)
        .chain(words)
        .collect();
    Job::start(test, &words)
}

/// The stream, and what of its memory is granted at the agent and at the servers.
fn granted(state: &Value) -> (&str, [u64; 2]) {
    let mut granted = [0, 0];
    for block_store in state["block_stores"]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
    {
        let is_server = block_store["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("server"));
        granted[usize::from(is_server)] += block_store["granted"].as_u64().expect("a number");
    }
    (
        state["streams"][0]["name"].as_str().expect("a name"),
        granted,
    )
}

/// The job when that process of it stands still from some step on, and the other one waits for it.
fn frozen(job: &mut Job, program: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let state = job.wait(|state| state["streams"][0]["steps"].as_u64() > Some(3));
    let units = state["units"].as_array().expect("a list");
    let mut units = units.iter().filter(|unit| unit["program"] == program);
    let pid = units.next().and_then(|unit| unit["pid"].as_i64());
    let pid = pid.and_then(|pid| Pid::from_raw(pid as i32));
    let pid = pid.expect("a process of the job");
    kill_process(pid, Signal::STOP).expect("it runs");
    let state = job.wait(is_so);
    kill_process(pid, Signal::CONT).expect("it runs");
    state
}

/// The reader stands still: the steps that wait for it lie where the method says, and the stream is
/// called as the edges of `graph` call it.
#[test]
fn blocks_lie_where_the_method_says() {
    let steps = 2 * 64 * 1024 * 8;
    for method in ["stream", "local", "server", "graph"] {
        let parameters = "--shape 64,1024 --writers 1 --readers 1 --servers 2 --steps 100000000";
        let mut job = start(&format!("where-{method}"), parameters, method);
        // The writer's wait names the process that it waits for, and says that it is stopped. It
        // may wait for a server for a moment before.
        let waited = |state: &Value| {
            let waits = state["waits"].as_array().map_or(&[][..], Vec::as_slice);
            let mut waits = waits.iter().filter(|wait| wait["who"] == "writer.0");
            let on = waits.next().map(|wait| wait["waits_on"][0].clone());
            on.filter(|on| on["name"] == "reader.0" && on["state"] == "stopped")
        };
        let state = frozen(&mut job, "reader", |state| waited(state).is_some());
        let on = waited(&state).expect("it was just there");
        let units = state["units"].as_array().expect("a list");
        let reader = units.iter().find(|unit| unit["program"] == "reader");
        assert_eq!(on["pid"], reader.expect("it is stopped")["pid"]);
        let (name, [agent, servers]) = granted(&state);
        let (here, there) = match method {
            "server" => (servers, agent),
            _ => (agent, servers),
        };
        assert!(here >= steps && there == 0, "{method}: {state}");
        let expected = match method {
            "graph" => "writer/synthetic",
            _ => "synthetic",
        };
        assert_eq!(name, expected, "{method}");
    }
}

/// The writer stands still and its reader has read everything: `local` keeps the two newest steps,
/// `stream` none.
#[test]
fn local_keeps_what_all_have_read() {
    for (method, kept) in [("stream", 0), ("local", 2)] {
        let parameters = "--shape 16,16 --writers 1 --readers 1 --steps 100000000";
        let mut job = start(&format!("kept-{method}"), parameters, method);
        let state = frozen(&mut job, "writer", |state| {
            let reader = &state["streams"][0]["readers"][0];
            let has_none = reader["queued_steps"] == 0 && reader["held_steps"] == 0;
            has_none && waiting(state, "who", "reader.0") == 1
        });
        assert_eq!(state["streams"][0]["held_steps"], kept, "{method}: {state}");
    }
}

/// Where no edge leads from a program, `graph` has nobody to write for.
#[test]
fn graph_asks_for_edges() {
    let words = |method| {
        [
            "run",
            "--config",
            method,
            "synthetic-writer",
            "--steps",
            "1",
        ]
    };
    let error = output(&words("stage.method=graph")).unwrap_err();
    assert!(error.contains("[[edge]]"), "{error}");
}
