//! `samite doctor FILE.toml`: what the plan says, against what is measured when the workflow runs.

use crate::domain::{Job, output, samite};
use serde_json::Value;
use std::path::Path;

/// Three writers of an array, whose readers never read: in the end exactly what may wait lies in
/// memory. The arguments are the method and how many servers there are.
fn workflow(folder: &Path, method: &str, servers: u32) -> String {
    let servers = match servers {
        0 => String::new(),
        units => {
            format!("[[program]]\nname = 'servers'\ncommand = 'stage-server'\nunits = {units}\n")
        }
    };
    let text = format!(
        r#"
[parameters]
rows = 768

[config.fabric]
deadline = "300s"

[config.stage]
method = "{method}"

[[program]]
name = "writer"
command = "synthetic-writer"
args = ["--shape", "{{rows}},1024", "--steps", "9"]
units = 3

[[program]]
name = "reader"
command = "sleep"
args = ["1000"]
units = 2

{servers}
[[edge]]
from = "writer"
stream = "synthetic"
to = "reader"
variables = [{{ name = "u", dtype = "f64", shape = "{{rows}},1024" }}]
"#
    );
    let path = folder.join("planned.toml");
    std::fs::write(&path, text).expect("a folder for it");
    path.to_str().expect("a name of messages").to_owned()
}

fn plan(words: &[&str]) -> Value {
    let doctor = samite(&[&["doctor", "--json"], words].concat()).output();
    let doctor = doctor.expect("samite can be started");
    let mut report: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    // The plan is there whether or not the machine is ready for it.
    assert_eq!(report["ready"].as_bool(), Some(doctor.status.success()));
    report["plan"].take()
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Open files of a process.
fn files(pid: &Value) -> u64 {
    let folder = format!("/proc/{pid}/fd");
    std::fs::read_dir(folder).expect("our process").count() as u64
}

/// Bytes of a step of `rows` rows.
fn step(rows: u64) -> u64 {
    rows * 1024 * 8
}

#[test]
fn what_is_planned_is_what_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = workflow(folder.path(), "stream", 0);
    let plan = plan(&[&file, "--rows", "384"]);
    let stream = &plan["streams"][0];
    assert_eq!(number(&stream["step_bytes"]), step(384));
    assert_eq!(number(&stream["most_put"]), step(128));
    assert_eq!(number(&stream["readers"][0]["each"]), step(192));
    assert_eq!(number(&stream["steps_in_memory"]), 2);
    assert_eq!(number(&plan["memory"]), 2 * step(384));

    let mut job = Job::start("planned", &[&file, "--rows", "384"]);
    let state = job.wait(|state| crate::domain::waiting(state, "waits_for", "a first reader") == 3);
    let measured = &state["streams"][0];
    let steps = number(&measured["steps"]);
    assert_eq!(steps, number(&stream["steps_in_memory"]));
    assert_eq!(
        number(&measured["bytes"]),
        steps * number(&stream["step_bytes"])
    );
    assert_eq!(number(&measured["memory"]), number(&plan["memory"]));
    let block_store = &state["block_stores"][0];
    assert!(
        number(&block_store["memory"]) > 0
            && number(&block_store["granted"]) == number(&plan["memory"])
    );
    for unit in state["units"].as_array().expect("a list") {
        let planned = match unit["program"].as_str() {
            Some("writer") => number(&plan["programs"][0]["files"]),
            _ => number(&plan["agent_files"]),
        };
        let open = files(&unit["pid"]);
        assert!(
            open <= planned,
            "{unit} has {open} open files, {planned} were planned"
        );
    }
}

#[test]
fn servers_get_what_is_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = workflow(folder.path(), "server", 2);
    let plan = plan(&[&file]);
    let servers = &plan["streams"][0]["servers"];
    assert_eq!(number(&servers["mean"]), step(768) / 2);
    let uneven = servers["max_over_mean"].as_f64().expect("a number");
    assert!((1.0..1.1).contains(&uneven), "{uneven}");
    let keeps = number(&plan["programs"][2]["keeps"]);
    assert_eq!(keeps, 2 * step(768) / 2);

    let mut job = Job::start("served", &[&file]);
    let state = job.wait(|state| crate::domain::waiting(state, "waits_for", "a first reader") == 3);
    let block_stores = state["block_stores"].as_array().expect("a list");
    let servers = block_stores
        .iter()
        .filter(|block_store| block_store["name"] != "samite-agent");
    let granted: Vec<u64> = servers
        .map(|block_store| number(&block_store["granted"]))
        .collect();
    assert_eq!(granted.len(), 2);
    for bytes in &granted {
        // Each rank's pieces are even within a sixteenth, and lie in buffers that are a sixteenth
        // larger at most.
        let share = *bytes as f64 / keeps as f64;
        assert!((0.93..1.13).contains(&share), "{granted:?} of {keeps}");
    }
}

#[test]
fn what_cannot_run_is_said_before_it_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let without = workflow(folder.path(), "server", 0);
    let command = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_samite"));
        let command = command.env("XDG_CONFIG_HOME", "/nonexistent").arg("doctor");
        let output = command.args(words).output().expect("samite can be started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = command(&[&without]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no program is a staging server"), "{text}");
    assert!(text.contains("6291456 bytes per step (6.0 MiB)"), "{text}");

    let file = workflow(folder.path(), "stream", 0);
    let small = ["--config", "memory.budget=4 MiB", &file];
    let (code, text) = command(&small);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("one step of synthetic needs 6.0 MiB"),
        "{text}"
    );
    // Half of the room for blocks is less than a step.
    let (code, text) = command(&["--config", "memory.budget=12 MiB", &file]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("only one step of synthetic fits"), "{text}");
    let (_, text) = command(&[&file, "--rows", "7680", "--config", "memory.budget=1 GiB"]);
    assert!(!text.contains("only one step"), "{text}");
    assert!(!text.contains("N-to-1"), "{text}");
}

/// What is BAD for `samite doctor` is refused by `samite run`, with the same sentence.
#[test]
fn a_job_that_cannot_run_is_refused_unless_it_is_forced() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |words: &[&str], said: &str| {
        let error = output(&[&["run"], words].concat()).expect_err("it cannot run");
        assert!(error.contains("so nothing was started:\n"), "{error}");
        assert!(error.contains(said), "{said}? {error}");
        assert!(error.contains("`--force` runs it all the same"), "{error}");
    };
    let without = workflow(folder.path(), "server", 0);
    let servers = "servers: synthetic uses the method `server`, but no program is a staging server";
    refused(&[&without], servers);
    let stream = workflow(folder.path(), "stream", 0);
    refused(
        &[
            &stream,
            "--config",
            "memory.budget=14 MiB",
            "--rows",
            "7680",
        ],
        "memory for steps: one step of synthetic needs",
    );
    // Streams that no [[edge]] names.
    let plain = folder.path().join("plain.toml");
    let text = "[[program]]\nname = 'a'\ncommand = 'true'\n[config.stage]\nmethod = 'server'\n";
    std::fs::write(&plain, text).expect("a folder for it");
    let plain = plain.to_str().expect("a name of messages");
    let servers = "servers: stage.method is `server`, but no program is a staging server";
    refused(&[plain], servers);
    let method = ["--config", "stage.method=server"];
    refused(&[&method[..], &["true"]].concat(), servers);
    refused(
        &["--config", "stage.field.method=graph", plain],
        "edges: stage.field.method is `graph`, but the job has no [[edge]]",
    );
    output(&["run", "--force", plain]).expect("it is forced");
    let doctor = samite(&["doctor", plain]).output().expect("samite runs");
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(text.contains("stage.method is `server`"), "{text}");
    // The user's own file is for all jobs, also for those without streams.
    let own = folder.path().join("samite");
    std::fs::create_dir(&own).expect("a folder for it");
    std::fs::write(own.join("config.toml"), "[stage]\nmethod = 'server'\n").expect("a file");
    let run = samite(&["run", "true"])
        .env("XDG_CONFIG_HOME", folder.path())
        .output();
    assert!(run.expect("samite runs").status.success());
}

#[test]
fn plans_that_cannot_be_are_no_ready_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let stream = workflow(folder.path(), "stream", 0);
    let says = |words: &[&str], said: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_samite"));
        let command = command.env("XDG_CONFIG_HOME", "/nonexistent").arg("doctor");
        let output = command.args(words).output().expect("samite can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert!(text.contains(said), "{words:?}: {said}? {text}");
    };
    says(
        &[&stream, "--config", "stage.memory=1 KiB"],
        "stage.memory allows only 1.0 KiB",
    );
    says(
        &[&stream, "--set", "program.reader.units=500"],
        "503 units are too many",
    );
    says(
        &[&stream, "--config", "memory.budget=8 MiB"],
        "need 12.0 MiB",
    );
    let servers = workflow(folder.path(), "server", 2);
    let text = std::fs::read_to_string(&servers).expect("it was written");
    let small = text.replace(
        "'stage-server'",
        "'stage-server'\nargs = ['--memory', '1 MiB']",
    );
    std::fs::write(&servers, small).expect("our folder");
    says(
        &[&servers],
        "has --memory 1.0 MiB, and its part of one step is 3.0 MiB",
    );
    let alone = folder.path().join("alone.toml");
    let text = "[[program]]\nname = 'a'\ncommand = 'true'\n[config]\nstage.method = 'graph'\n";
    std::fs::write(&alone, text).expect("our folder");
    says(&[alone.to_str().expect("UTF-8")], "has no [[edge]]");
}

/// Each run of a sweep is checked, and an error says which one it is about.
#[test]
fn the_runs_of_a_sweep_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("flow.toml");
    let text = "[parameters]\nn = { required = true }\n[sweep]\nn = [1, 2]\n\
                [[program]]\nname = 'a'\ncommand = 'true'\nunits = '{n}'\n";
    std::fs::write(&path, text).expect("our folder");
    let samite = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_samite"));
        let command = command.env("XDG_CONFIG_HOME", "/nonexistent");
        let output = command.args(arguments).arg(&path).output();
        let output = output.expect("samite can be started");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(output.stdout), text(output.stderr))
    };
    let (said, errors) = samite(&["doctor"]);
    assert_eq!(errors, "");
    for (label, units) in [("n = 1", 1), ("n = 2", 2)] {
        let heading = format!("The run with {label}:\n");
        assert!(said.contains(&heading), "{said}");
        let end = format!("flow.toml with {label} ({units} units)");
        assert!(said.contains(&end), "{said}");
    }
    let (plans, _) = samite(&["doctor", "--json"]);
    let plans: Value = serde_json::from_str(&plans).expect("JSON");
    assert_eq!(plans[1]["run"], "n = 2");
    assert_eq!(plans[1]["plan"]["units"], 2);
    std::fs::write(&path, text.replace("[1, 2]", "[1, 100000]")).expect("our folder");
    for command in ["run", "doctor"] {
        let (_, errors) = samite(&[command]);
        let sentence = "samite: the run with n = 100000: ";
        assert!(errors.contains(sentence), "{errors}");
    }
}

/// What keeps a job from running is what the launcher refuses.
#[test]
fn open_files_are_counted_as_the_launcher_counts_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("flow.toml");
    let text = "[[program]]\nname = 'a'\ncommand = 'true'\nunits = 16\n";
    std::fs::write(&path, text).expect("our folder");
    let findings = |limit: &str| {
        let script = format!("ulimit {limit}; exec \"$0\" doctor \"$1\"");
        let mut command = std::process::Command::new("sh");
        let command = command.env("XDG_CONFIG_HOME", "/nonexistent");
        let command = command.args(["-c", &script, env!("CARGO_BIN_EXE_samite")]);
        let output = command.arg(&path).output().expect("sh can be started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_good = |what: &str| {
            let mut lines = text.lines().filter(|line| line.contains(what));
            let line = lines.next().unwrap_or_else(|| panic!("{what} in {text}"));
            line.trim_start().starts_with("ok")
        };
        ["files per process", "open files "].map(is_good)
    };
    let needed = 40 + crate::domain::inherited_descriptors();
    let fewer = needed - 1;
    assert_eq!(findings(&format!("-Sn {fewer}")), [true, true]);
    assert_eq!(findings(&format!("-n {needed}")), [true, true]);
    assert_eq!(findings(&format!("-n {fewer}")), [false, false]);
}

#[test]
fn bytes_beyond_64_bits_are_as_many_as_can_be_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let programs =
        ["a", "b"].map(|name| format!("[[program]]\nname = '{name}'\ncommand = 'true'\n"));
    let half = i64::MAX;
    let edges = ["f", "g", "h"].map(|stream| {
        format!(
            "[[edge]]\nfrom = 'a'\nto = 'b'\nstream = '{stream}'\n\
             variables = [{{ name = 'u', dtype = 'u8', shape = {half} }}]\n"
        )
    });
    let path = folder.path().join("flow.toml");
    std::fs::write(&path, programs.concat() + &edges.concat()).expect("our folder");
    let plan = plan(&[path.to_str().expect("a name of messages")]);
    assert_eq!(number(&plan["memory"]), u64::MAX);
    assert_eq!(number(&plan["programs"][0]["holds"]), u64::MAX);
}

#[test]
fn copies_and_kept_steps_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = workflow(folder.path(), "server", 2);
    let with = |setting: &str| plan(&[&file, "--config", setting]);
    // There are two servers for three copies.
    assert_eq!(
        number(&with("stage.replicas=3")["memory"]),
        2 * 2 * step(768)
    );
    let kept = format!("stage.retain_bytes={} B", 5 * step(768));
    assert_eq!(number(&with(&kept)["streams"][0]["steps_in_memory"]), 6);
    let first = with("stage.precious_first=true");
    assert_eq!(number(&first["streams"][0]["steps_in_memory"]), 3);
    let writer = &first["programs"][0];
    assert_eq!(number(&writer["holds"]), step(256));
}

#[test]
fn every_workflow_has_a_plan() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows");
    for (name, bytes) in [
        ("synthetic.toml", 2048 * 2048 * 8),
        ("lammps-msd.toml", 4 * 8000 * 32),
        ("laplace.toml", 2 * 384 * 384 * 8),
        ("steering.toml", 2 * 256 * 256 * 8),
    ] {
        let file = folder.join(name);
        let plan = plan(&[file.to_str().expect("a name of messages")]);
        assert_eq!(number(&plan["streams"][0]["step_bytes"]), bytes, "{name}");
    }
}

/// Whether the kernel copies is tried by another process: a process may always read itself.
#[test]
fn the_kernel_copy_is_tried_between_processes() {
    let word = Box::new(0x1234_5678_9abc_def0_u64 ^ u64::from(std::process::id()));
    // What doctor lets its child do; where there is no Yama it changes nothing.
    samite::Ptracer::Process(std::process::id() as i32).allow();
    let address = std::ptr::from_ref(&*word) as u64;
    let own = std::process::id().to_string();
    let reads = |address: u64| output(&["copy-probe", &own, &address.to_string()]);
    let doctor = |setting: &str| {
        let setting = format!("fabric.ptracer={setting}");
        // It fails where anything else is missing on this machine.
        let said = samite(&["doctor", "--config", &setting]).output();
        let said = said.expect("samite can be started").stdout;
        let text = String::from_utf8_lossy(&said);
        let line = text.lines().find(|line| line.contains("kernel copy"));
        line.expect("it says so").to_owned()
    };
    match reads(address) {
        Ok(text) => {
            assert_eq!(text.trim(), word.to_string());
            assert!(reads(8).is_err(), "nothing is there");
            for setting in ["launcher", "any"] {
                let line = doctor(setting);
                assert!(line.contains("works between processes"), "{line}");
            }
        }
        Err(why) => {
            let line = doctor("launcher");
            assert!(!line.contains("works"), "{why}: {line}");
        }
    }
    assert!(output(&["doctor", "--config", "fabric.ptracer=everybody"]).is_err());
}
