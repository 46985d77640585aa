//! The command line: help, what is shown, colours, JSON, completions, manual pages, `samite ps`.

use crate::domain::{Job, output, samite};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    samite(words).output().expect("samite can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn shown(words: &[&str]) -> String {
    output(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

fn json(words: &[&str]) -> Value {
    let text = shown(words);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
}

fn workflow(folder: &Path, text: &str) -> String {
    let path = folder.join("flow.toml");
    std::fs::write(&path, text).expect("a scratch folder can be written");
    path.display().to_string()
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch folder")
}

const FLOW: &str = "
[parameters]
size = { default = 8, help = 'rows of each unit' }
[[program]]
name = 'a'
command = 'true'
";

#[test]
fn help_shows_the_parameters_of_a_workflow_in_front_of_it_and_behind_it() {
    let folder = scratch();
    let flow = workflow(folder.path(), FLOW);
    for words in [
        ["run", "-h", &flow],
        ["run", "--help", &flow],
        ["run", &flow, "-h"],
        ["run", &flow, "--help"],
        ["doctor", "-h", &flow],
        ["doctor", &flow, "--help"],
    ] {
        let help = shown(&words);
        assert!(help.contains("--size <VALUE>"), "{words:?}: {help}");
        assert!(help.contains("rows of each unit [default: 8]"), "{help}");
    }
    // Options of all commands stand in front of it, too.
    let help = shown(&["--color", "never", "-v", "run", "-h", &flow]);
    assert!(help.contains("--size <VALUE>"), "{help}");
}

#[test]
fn a_workflow_may_follow_the_end_of_the_options() {
    let folder = scratch();
    let flow = workflow(folder.path(), FLOW);
    assert!(run(&["run", "--", &flow]).status.success());
    let refused = run(&["run", "-m", "4", "true"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("`samite run` has no option -m"), "{said}");
}

/// A parameter cannot have the name of an option that all commands have.
#[test]
fn a_parameter_that_is_called_like_an_option_is_refused() {
    let folder = scratch();
    let flow = workflow(folder.path(), &FLOW.replace("size", "verbose"));
    let refused = run(&["run", &flow]);
    let why = "the parameter `verbose` is an option of `samite run` already";
    let said = text(&refused.stderr);
    assert!(said.contains(why), "{said}");
}

#[test]
fn the_programs_are_listed_and_explain_themselves() {
    let list = shown(&["programs"]);
    let programs = json(&["programs", "--json"]);
    let programs = programs.as_array().expect("a list");
    assert!(programs.len() >= 19, "{list}");
    for program in programs {
        let [name, what] = ["name", "what"].map(|key| program[key].as_str().expect("a text"));
        let line = list.lines().find(|line| line.starts_with(name));
        assert!(
            line.is_some_and(|line| line.ends_with(what)),
            "{name}: {list}"
        );
    }
    for words in [
        &["run", "nas-is", "--help"][..],
        &["run", "--help", "nas-is"],
        &["run", "-n", "2", "nas-is", "-h"],
    ] {
        let help = shown(words);
        let usage = "Usage: samite run [-n N] nas-is [OPTIONS]";
        assert!(help.contains(usage) && help.contains("--class"), "{help}");
        assert!(!help.contains("[nas-is.0]"), "a unit printed it: {help}");
    }
    // Whoever reads them may have enough.
    for words in [&["run", "nas-is", "--help"][..], &["--help"], &[]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = samite(words).stdout(writer).output();
        let output = output.expect("samite can be started");
        let said = text(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn more_or_less_is_shown() {
    let folder = scratch();
    let sweep = format!("{FLOW}cwd = '.'\nargs = ['{{size}}']\n[sweep]\nsize = [1, 2]\n");
    let flow = workflow(folder.path(), &sweep);
    let errors = |words: &[&str], log: Option<&str>| {
        let mut command = samite(words);
        command.envs(log.map(|log| ("SAMITE_LOG", log)));
        let output = command.output().expect("samite can be started");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let note = "samite: run 2 of 2: size = 2";
    let logged = "INFO samite_launch";
    let said = errors(&["run", &flow], None);
    assert!(said.contains(note) && !said.contains(logged), "{said}");
    let said = errors(&["run", "-v", &flow], None);
    assert!(said.contains(note) && said.contains(logged), "{said}");
    let said = errors(&["-v", "run", &flow], None);
    assert!(said.contains(logged), "{said}");
    assert_eq!(errors(&["run", "--quiet", &flow], None), "");
    let said = errors(&["run", "-v", &flow], Some("error"));
    assert!(said.contains(note) && !said.contains(logged), "{said}");
    let said = errors(&["run", "-q", &flow], Some("info"));
    assert!(!said.contains(note) && said.contains(logged), "{said}");
    // A unit that is started again, or need not succeed, is a note.
    let lives = "restart = 1\n[[program]]\nname = 'b'\ncommand = 'false'\noptional = true\n";
    let again = FLOW.replace(
        "'true'",
        "'sh'\nargs = ['-c', '[ -e again ] || ! touch again']",
    );
    let flow = workflow(folder.path(), &format!("{again}cwd = '.'\n{lives}"));
    let note = "the job goes on";
    assert!(errors(&["run", &flow], None).contains(note));
    std::fs::remove_file(folder.path().join("again")).expect("the first life left it");
    assert_eq!(errors(&["run", "-q", &flow], None), "");
    // An error is shown in any case.
    let failed = run(&["run", "-q", "false"]);
    let said = text(&failed.stderr);
    assert!(said.contains("false.0 ended with exit code 1"), "{said}");
}

#[test]
fn colours_are_for_terminals_and_those_who_ask() {
    let is_colored = |text: &str| text.contains("\x1b[");
    for (color, expected) in [("auto", false), ("always", true), ("never", false)] {
        for words in [
            &["run", "no-such-program", "--color", color][..],
            &["run", "--color", color, "no-such-program"],
            &["run", "--color", color, "-n", "0", "true"],
            &["--color", color, "no-such-command"],
        ] {
            let output = run(words);
            assert_eq!(output.status.code(), Some(2));
            let said = text(&output.stderr);
            // What follows a program is the program's.
            let expected = expected && words[1] != "no-such-program";
            assert_eq!(is_colored(&said), expected, "{words:?}: {said}");
        }
        let help = shown(&["--help", "--color", color]);
        assert!(help.contains("completions"), "{help}");
    }
    // `script`, of util-linux, gives a command a terminal.
    let on_terminal = |words: &str, no_color: &str| {
        let line = format!("{} {words}", env!("CARGO_BIN_EXE_samite"));
        let output = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env("NO_COLOR", no_color)
            .output();
        text(&output.expect("script can be started").stdout)
    };
    for (words, no_color, expected) in [
        ("run no-such-program", "", true),
        ("run no-such-program", "1", false),
        ("--color never run no-such-program", "", false),
        ("--color always run no-such-program", "1", true),
    ] {
        let said = on_terminal(words, no_color);
        assert!(said.contains("no program"), "{said}");
        assert_eq!(is_colored(&said), expected, "{words} {no_color}: {said}");
    }
}

#[test]
fn what_is_known_is_printed_as_json() {
    let info = json(&["info", "--json"]);
    assert_eq!(info["transports"][0]["name"], "shm");
    assert_eq!(info["transports"][0]["chosen"], true);
    assert!(info["machine"]["memory_total"].as_u64() > Some(0), "{info}");
    let ring = info["copies"]["sizes"][0]["ring"].as_f64();
    assert!(ring > Some(1e6), "bytes per second: {info}");
    assert_eq!(info["domain"], Value::Null);

    let folder = scratch();
    let flow = workflow(
        folder.path(),
        &format!("{FLOW}[config.fabric]\nspin = '3us'\n"),
    );
    let settings = json(&["config", "show", "--json", &flow]);
    assert_eq!(settings["fabric"]["spin"], "3us");
    assert_eq!(settings["fabric"]["check"], false);
    let set = ["--config", "stage.a.b.method=local"];
    let show = ["config", "show", "--json", "--origin", &flow];
    let settings = json(&[&show[..], &set].concat());
    assert_eq!(settings["fabric"]["check"]["origin"], "default");
    assert_eq!(settings["fabric"]["spin"]["value"], "3us");
    let origin = settings["fabric"]["spin"]["origin"].as_str();
    assert!(
        origin.is_some_and(|origin| origin.ends_with("flow.toml:8")),
        "{settings}"
    );
    let of_stream = &settings["stage"]["a.b"]["method"];
    assert_eq!(of_stream["origin"], "--config", "{settings}");
}

/// Returns what `samite run` writes with `--outcome`, and its exit code.
fn outcome(folder: &Path, words: &[&str]) -> (Value, Option<i32>) {
    let file = folder.join("outcome.json");
    // That of an earlier run is not taken for that of this one.
    std::fs::write(&file, "{\"exit_code\": 99").expect("a scratch folder can be written");
    let path = file.display().to_string();
    let output = run(&[&["run", "--outcome", &path], words].concat());
    let written = std::fs::read_to_string(&file).expect("it was written");
    let outcome = serde_json::from_str(&written);
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}: {written}"));
    (outcome, output.status.code())
}

#[test]
fn the_outcome_of_a_run_is_written() {
    let folder = scratch();
    let (done, code) = outcome(folder.path(), &["-n", "2", "true"]);
    assert_eq!((code, &done["exit_code"]), (Some(0), &0.into()));
    assert_eq!(done["error"], Value::Null);
    let job = &done["runs"][0];
    assert_eq!((&job["job"], &job["cause"]), (&"true".into(), &Value::Null));
    let units = job["units"].as_array().expect("a list");
    assert_eq!(units.len(), 2, "{done}");
    for unit in units {
        assert_eq!(
            (&unit["program"], &unit["exit_code"]),
            (&"true".into(), &0.into())
        );
        let [started, ended] = ["started", "ended"].map(|key| unit[key].as_f64());
        assert!(
            started <= ended && ended <= job["seconds"].as_f64(),
            "{done}"
        );
        assert!(unit["pid"].as_u64() > Some(1), "{done}");
    }
    // A unit fails; the other one is ended.
    let script = "[ $SAMITE_RANK = 0 ] && kill -USR1 $$; sleep 1000";
    let (done, code) = outcome(folder.path(), &["-n", "2", "sh", "-c", script]);
    assert_eq!((code, &done["exit_code"]), (Some(138), &138.into()));
    let job = &done["runs"][0];
    assert_eq!(job["cause"]["error"], "launch.UnitFailed");
    assert_eq!(job["cause"]["units"], serde_json::json!(["sh.0"]));
    let message = job["cause"]["message"].as_str().expect("a text");
    assert!(
        message.contains("sh.0 was killed by signal 10"),
        "{message}"
    );
    assert_eq!(done["error"], job["cause"]["message"]);
    let units = job["units"].as_array().expect("a list");
    let signal = |rank: u64| {
        let unit = units.iter().find(|unit| unit["rank"] == rank);
        unit.and_then(|unit| unit["signal"].as_u64())
    };
    assert_eq!((signal(0), signal(1)), (Some(10), Some(15)), "{done}");
    // Nothing was started.
    let (done, code) = outcome(folder.path(), &["no-such-program"]);
    assert_eq!((code, &done["exit_code"]), (Some(2), &2.into()));
    assert_eq!(done["runs"], serde_json::json!([]));
    let error = done["error"].as_str().expect("a text");
    assert!(
        error.contains("there is no program `no-such-program`"),
        "{error}"
    );
}

#[test]
fn the_outcome_has_all_runs_and_all_lives() {
    let folder = scratch();
    let flow = "
        parameters = { n = 0 }
        sweep = { n = [3, 4] }
        [[program]]
        name = 'a'
        command = 'sh'
        args = ['-c', '[ -e again ] && exit 0; touch again; exit {n}']
        restart = 1
    ";
    let flow = workflow(folder.path(), flow);
    let (done, code) = outcome(folder.path(), &[&flow]);
    assert_eq!(code, Some(0), "{done}");
    for (run, n) in [(0, 3), (1, 4)] {
        let run = &done["runs"][run];
        assert_eq!(run["label"], format!("n = {n}"));
        assert!(run["folder"].is_string(), "{done}");
        let lives = run["units"].as_array().expect("a list");
        let lives = lives.iter().map(|life| {
            let again = life["again"].as_bool();
            (life["exit_code"].as_u64(), again)
        });
        let lives: Vec<_> = lives.collect();
        assert_eq!(
            lives,
            [(Some(n), Some(true)), (Some(0), Some(false))],
            "{done}"
        );
    }
}

/// If the file for the outcome was forgotten, what comes in its place stays as it was.
#[test]
fn a_workflow_is_no_outcome() {
    let folder = scratch();
    let file = workflow(folder.path(), "[[program]]\nname = 'a'\ncommand = 'true'\n");
    let text = || std::fs::read_to_string(&file).expect("it is there");
    let before = text();
    let refused = |words: &[&str]| {
        let mut command = samite(words);
        let output = command.current_dir(folder.path()).output();
        let output = output.expect("samite can be started");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert_eq!(text(), before, "{words:?}");
    };
    refused(&["run", "--outcome", &file]);
    refused(&["run", "-n", "2", "--outcome", &file]);
    refused(&["run", "--outcome", "--size", "3", &file]);
    assert!(!folder.path().join("--size").exists());
}

/// The file of an earlier run does not stay as it was.
#[test]
fn what_is_refused_is_an_outcome_too() {
    let folder = scratch();
    let broken = workflow(folder.path(), "[[programm]]");
    let refused = |words: &[&str], why: &str| {
        let (done, code) = outcome(folder.path(), words);
        assert_eq!((code, &done["exit_code"]), (Some(2), &2.into()));
        assert_eq!(done["runs"], serde_json::json!([]));
        let error = done["error"].as_str().expect("a text");
        assert!(error.contains(why), "{words:?}: {error}");
        assert!(!error.starts_with("error:"), "{error}");
    };
    refused(&[&broken], "did you mean `program`?");
    refused(&["no-such-workflow.toml"], "cannot read the workflow");
    refused(&["-n", "none", "true"], "invalid value 'none' for '-n <N>'");
    let right = workflow(folder.path(), FLOW);
    refused(&[&right, "--sizes", "3"], "unexpected argument '--sizes'");
    let file = folder.path().join("outcome.json");
    let path = file.display().to_string();
    let words = ["run", "--outcome", &path, "true"];
    let output = samite(&words).env("SAMITE_LOG", "loud").output();
    assert_eq!(output.expect("it can be started").status.code(), Some(2));
    let written = std::fs::read_to_string(&file).expect("it was written");
    assert!(written.contains("SAMITE_LOG is `loud`"), "{written}");
    // Help is no run.
    shown(&["run", "--outcome", &path, "--help"]);
    assert_eq!(
        std::fs::read_to_string(&file).expect("it is there"),
        written
    );
}

/// The units have ended well, and a signal ends the wait for a reader of their output.
#[test]
fn the_outcome_of_a_run_that_is_not_read() {
    let folder = scratch();
    let file = folder.path().join("outcome.json");
    let path = file.display().to_string();
    let flood = "i=0; while [ $i -lt 20000 ]; do echo a line $i; i=$((i+1)); done";
    let mut child = samite(&["run", "--outcome", &path, "sh", "-c", flood])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("samite can be started");
    // The unit runs, and then no process of the job is left.
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe"));
    lines.read_line(&mut String::new()).expect("units print");
    let launcher = rustix::process::Pid::from_child(&child);
    let children = || {
        let pid = launcher.as_raw_nonzero();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
    };
    while !children().is_empty() {
        std::thread::yield_now();
    }
    rustix::process::kill_process(launcher, rustix::process::Signal::TERM).expect("it runs");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(143));
    let written = std::fs::read_to_string(&file).expect("it was written");
    let done: Value = serde_json::from_str(&written).expect("JSON");
    let run = &done["runs"][0];
    assert_eq!(
        (&done["exit_code"], &run["exit_code"]),
        (&143.into(), &143.into())
    );
    assert_eq!(run["cause"]["error"], "launch.Interrupted", "{done}");
    assert_eq!(done["error"], run["cause"]["message"]);
    assert_eq!(run["units"][0]["exit_code"], 0, "{done}");
}

/// Where figures of the host cannot be kept, none are measured, and that is said once.
#[test]
fn a_sweep_looks_for_the_figures_of_the_host_once() {
    let folder = scratch();
    let sweep = format!("{FLOW}cwd = '.'\nargs = ['{{size}}']\n[sweep]\nsize = [1, 2, 3]\n");
    let flow = workflow(folder.path(), &sweep);
    let output = samite(&["run", &flow])
        .env("XDG_CACHE_HOME", "/dev/null")
        .output()
        .expect("samite can be started");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("could not be kept").count(), 1, "{said}");
    assert!(!said.contains("measuring"), "{said}");
}

#[test]
fn an_outcome_that_cannot_be_written_is_found_at_once() {
    let folder = scratch();
    let [file, proof] = ["no/such/folder.json", "proof"].map(|name| folder.path().join(name));
    let [file, proof] = [file, proof].map(|path| path.display().to_string());
    let refused = run(&["run", "--outcome", &file, "touch", &proof]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot create {file}")), "{said}");
    assert!(!Path::new(&proof).exists(), "the job ran");
}

#[test]
fn shells_complete_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = shown(&["completions", shell]);
        for word in ["doctor", "completions", "outcome"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
        // Those that only samite itself starts.
        assert!(!script.contains("exec-unit"), "{shell}");
    }
    let script = shown(&["completions", "bash"]);
    let ask =
        "COMP_WORDS=(samite do); COMP_CWORD=1; _samite samite do samite; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash")
        .arg("-c")
        .arg(format!("{script}\n{ask}"))
        .output();
    let bash = bash.expect("bash can be started");
    assert_eq!(text(&bash.stdout), "doctor\n", "{}", text(&bash.stderr));
}

#[test]
fn there_are_manual_pages() {
    let page = shown(&["man"]);
    assert!(page.contains(".TH samite 1"), "{page}");
    assert!(page.contains("samite\\-run(1)"), "{page}");
    let folder = scratch();
    let pages = folder.path().join("a/man1");
    shown(&["man", &pages.display().to_string()]);
    let page = |name: &str| std::fs::read_to_string(pages.join(name));
    let run = page("samite-run.1").expect("it was written");
    assert!(run.contains("outcome"), "{run}");
    assert!(page("samite-config-show.1").is_ok());
    assert!(page("samite-exec-unit.1").is_err());
}

#[test]
fn jobs_and_their_processes_are_listed() {
    let words = [
        "-n",
        "2",
        "synthetic-writer",
        "--shape",
        "64,1024",
        "--steps",
        "9",
    ];
    let mut job = Job::start("listed", &words);
    // Both have joined, and wait for a reader.
    job.wait(|state| crate::domain::waiting(state, "waits_for", "a first reader") == 2);
    let all = json(&["ps", "--json"]);
    let domains = all["domains"].as_array().expect("a list");
    let own = domains.iter().find(|one| one["domain"] == *job.domain);
    let own = own.unwrap_or_else(|| panic!("no {} in {all}", job.domain));
    assert!(own["agent"]["pid"].as_u64() > Some(1), "{own}");
    let program = &own["jobs"][0]["programs"][0];
    assert_eq!(
        (&program["program"], &program["size"]),
        (&"synthetic-writer".into(), &2.into())
    );
    let units = program["units"].as_array().expect("a list");
    let ranks: Vec<_> = units.iter().map(|unit| unit["rank"].as_u64()).collect();
    assert_eq!(ranks, [Some(0), Some(1)]);
    for unit in units {
        assert_eq!(unit["joined"], true, "{unit}");
        // A unit that waits looks around now and then.
        let state = unit["state"].as_str().expect("a text");
        assert!(["asleep", "running"].contains(&state), "{unit}");
        assert!(unit["resident"].as_u64() > Some(0), "{unit}");
    }
    let text = shown(&["ps", "--domain", &job.domain]);
    let pid = units[1]["pid"].to_string();
    for said in ["agent", "synthetic-writer.1 of 2", &pid, "granted"] {
        assert!(text.contains(said), "{said}? {text}");
    }
    let error = output(&["ps", "--domain", "nowhere-at-all"]).unwrap_err();
    assert!(error.contains("nowhere-at-all"), "{error}");
}

/// A process that never becomes a member is listed as well.
#[test]
fn a_unit_that_has_not_joined_is_listed() {
    let mut job = Job::start("unjoined", &["sh", "-c", "sleep 1000; true"]);
    loop {
        job.wait(|_| true);
        let all = json(&["ps", "--json", "--domain", &job.domain]);
        let programs = &all["domains"][0]["jobs"][0]["programs"];
        // The launcher starts it after the agent.
        let Some(unit) = programs[0]["units"].get(0) else {
            continue;
        };
        assert_eq!(
            (&programs[0]["program"], &unit["joined"]),
            (&"sh".into(), &false.into())
        );
        // Its own child, which has the same variables, is not a unit.
        assert_eq!(
            programs[0]["units"].as_array().map(Vec::len),
            Some(1),
            "{all}"
        );
        break;
    }
    let text = shown(&["ps"]);
    assert!(
        text.contains(&job.domain) && text.contains("not joined"),
        "{text}"
    );
}
