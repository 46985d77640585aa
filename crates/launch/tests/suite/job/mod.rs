//! Whole jobs of small shell programs: output, ends, failures, and that nothing stays behind.

mod cause;
mod ends;
mod files;
mod restarts;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use samite_launch::{Error, Event, Exit, Interrupts, Plan, Program, Stream, run};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What a job did, as the caller of `run` saw it.
#[derive(Default)]
struct Seen {
    lines: Vec<String>,
    errors: Vec<String>,
    progress: Vec<(String, u64)>,
    pids: Vec<u32>,
    ends: Vec<(String, Exit)>,
}

fn plan(programs: impl IntoIterator<Item = Program>) -> Plan {
    let mut plan = Plan::new("test");
    plan.programs.extend(programs);
    plan.starter = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/starter.sh"));
    plan
}

fn sh(name: &str, script: &str) -> Program {
    Program::new(name, "/bin/sh").args(["-c", script])
}

/// Runs a plan; `then` sees each event too, with the process id of its process where it has one.
fn watch(plan: &Plan, then: impl FnMut(&Event<'_>, &Seen)) -> (Result<(), Error>, Seen) {
    watch_with(plan, None, then)
}

fn watch_with(
    plan: &Plan,
    interrupts: Option<&Interrupts>,
    mut then: impl FnMut(&Event<'_>, &Seen),
) -> (Result<(), Error>, Seen) {
    let mut seen = Seen::default();
    let result = run(plan, interrupts, &mut |event| {
        match &event {
            Event::Started { pid, .. } => seen.pids.push(*pid),
            Event::Ended { name, exit, .. } => seen.ends.push((name.to_string(), *exit)),
            Event::Line(line) => {
                let mut text = Vec::new();
                line.write_to(&mut text).expect("a Vec takes everything");
                let text = String::from_utf8(text).expect("the scripts print ASCII");
                let to = if line.stream == Stream::Stdout {
                    &mut seen.lines
                } else {
                    &mut seen.errors
                };
                to.push(text);
            }
            Event::Progress { name, progress } => {
                seen.progress.push((name.to_string(), progress.step))
            }
            _ => {}
        }
        then(&event, &seen);
    });
    for &pid in &seen.pids {
        assert!(!exists(pid), "process {pid} is left");
    }
    (result, seen)
}

fn exists(pid: u32) -> bool {
    test_kill_process(pid_of(pid)).is_ok()
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("process ids are small")).expect("not zero")
}

/// Waits until a process has ended; it is not reaped yet.
fn wait_for_end(pid: u32) {
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("not reaped");
    while !state().contains(") Z ") {
        std::thread::yield_now();
    }
}

/// Returns a unit that always fails at once, is started again each time, and counts its lives in
/// the lines of a file.
fn failing(lives: &Path) -> Program {
    let mut failing = sh("flaky", &format!("echo >> {}; exit 3", lives.display()));
    failing.restart = 100;
    failing
}

#[test]
fn units_know_their_place() {
    let script =
        "echo $SAMITE_PROGRAM $SAMITE_RANK/$SAMITE_SIZE $SAMITE_UNIT/$SAMITE_UNITS $SAMITE_DOMAIN";
    let (result, mut seen) = watch(
        &plan([sh("a", script).units(2), sh("b", script)]),
        |_, _| {},
    );
    result.expect("all end well");
    seen.lines.sort();
    assert_eq!(
        seen.lines,
        [
            "[a.0] a 0/2 0/3 test\n",
            "[a.1] a 1/2 1/3 test\n",
            "[b.0] b 0/1 2/3 test\n"
        ]
    );
}

#[test]
fn streams_progress_and_unfinished_lines() {
    let script = r#"echo out; echo err >&2; printf '\036progress {"step":3,"of":4}\n'; printf end"#;
    let mut table = sh("table", "echo plain");
    table.prefix = false;
    let (result, mut seen) = watch(&plan([sh("a", script), table]), |_, _| {});
    result.expect("all end well");
    seen.lines.sort();
    assert_eq!(seen.lines, ["[a.0] end\n", "[a.0] out\n", "plain\n"]);
    assert_eq!(seen.errors, ["[a.0] err\n"]);
    assert_eq!(seen.progress, [("a.0".to_owned(), 3)]);
}

#[test]
fn a_failure_ends_the_others_and_names_the_unit() {
    let failing = sh("bad", "echo so far so good; echo broken >&2; exit 3");
    let (result, _) = watch(
        &plan([sh("good", "sleep 1000").units(2), failing]),
        |_, _| {},
    );
    let error = result.expect_err("one failed");
    assert_eq!(error.exit_code(), 3);
    let Error::UnitFailed {
        unit, exit, said, ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (unit.to_string(), exit),
        ("bad.0".to_owned(), Exit::Code(3))
    );
    assert!(said.contains(&"broken".to_owned()), "{said:?}");
}

/// A program starts when those that it comes after are ready.
#[test]
fn programs_start_in_order() {
    let mesh = sh("mesh", "echo made").units(2);
    let mut server = sh(
        "server",
        "echo up; trap 'exit 0' TERM; while :; do sleep 0.01; done",
    );
    server.ready = Some("up".to_owned());
    server.after = vec!["mesh".to_owned()];
    let mut solver = sh("solver", "echo solved; exit 3");
    solver.after = ["server", "mesh", "nobody"].map(str::to_owned).to_vec();
    let (result, seen) = watch(&plan([solver, server, mesh]), |_, _| {});
    assert_eq!(result.expect_err("one failed").exit_code(), 3);
    let said = ["mesh.0] made", "server.0] up", "solver.0] solved"];
    let place = |text: &str| seen.lines.iter().position(|line| line.contains(text));
    let places = said.map(|text| place(text).expect(text));
    assert!(places.is_sorted(), "{:?}", seen.lines);
}

#[test]
fn settings_that_do_not_fit_into_the_environment_are_refused() {
    let mut job = plan([sh("a", "[ ${#SAMITE_CONFIG} -gt 131000 ]")]);
    let most = 32 * rustix::param::page_size() - "SAMITE_CONFIG=\0".len();
    job.config = "#".repeat(most);
    watch(&job, |_, _| {}).0.expect("they just fit");
    job.config += "#";
    let (result, seen) = watch(&job, |_, _| {});
    assert!(
        matches!(result, Err(Error::SettingsTooLong { .. })),
        "{result:?}"
    );
    assert_eq!(seen.pids, [0; 0]);
}

#[test]
fn a_flood_of_lines_is_never_interleaved() {
    let script = r#"i=0; while [ $i -lt 2000 ]; do echo "$SAMITE_RANK line $i of a flood"; i=$((i+1)); done"#;
    let (result, seen) = watch(&plan([sh("a", script).units(4)]), |_, _| {});
    result.expect("all end well");
    assert_eq!(seen.lines.len(), 8000);
    for rank in 0..4 {
        let start = format!("[a.{rank}] ");
        let own: Vec<_> = seen
            .lines
            .iter()
            .filter(|line| line.starts_with(&start))
            .collect();
        for (index, line) in own.iter().enumerate() {
            assert_eq!(
                **line,
                format!("[a.{rank}] {rank} line {index} of a flood\n")
            );
        }
        assert_eq!(own.len(), 2000);
    }
}

#[test]
fn the_agent_comes_first_and_goes_last() {
    let mut job = plan([sh("a", "echo unit")]);
    let script = "echo up >&2; echo ready; exec >&-; trap 'echo down >&2; exit 0' TERM; while :; do sleep 0.01; done";
    job.agent = Some(["/bin/sh", "-c", script].map(Into::into).to_vec());
    let (result, seen) = watch(&job, |_, _| {});
    result.expect("all end well");
    assert_eq!(
        seen.errors.first().map(String::as_str),
        Some("[agent] up\n")
    );
    assert_eq!(
        seen.errors.last().map(String::as_str),
        Some("[agent] down\n")
    );
    assert_eq!(seen.lines, ["[a.0] unit\n"]);
}

#[test]
fn an_agent_that_cannot_start_is_reported_and_no_unit_starts() {
    let mut job = plan([sh("a", "echo unit")]);
    job.agent = Some(
        ["/bin/sh", "-c", "echo the domain is taken >&2; exit 1"]
            .map(Into::into)
            .to_vec(),
    );
    let (result, seen) = watch(&job, |_, _| {});
    let error = result.expect_err("there is no agent").to_string();
    assert!(
        error.contains("the last thing it said: the domain is taken"),
        "{error}"
    );
    assert_eq!(seen.lines, [""; 0]);
}

#[test]
fn the_loss_of_the_agent_ends_the_job_and_is_the_cause() {
    // The unit notices the loss and fails by itself: still it is the agent that is reported.
    let mut job = plan([sh(
        "a",
        "trap 'exit 7' USR1; echo up; while :; do sleep 0.01; done",
    )]);
    job.agent = Some(
        ["/bin/sh", "-c", "echo ready; exec >&-; sleep 1000"]
            .map(Into::into)
            .to_vec(),
    );
    let (result, _) = watch(&job, |event, seen| {
        if matches!(event, Event::Line(_)) {
            kill_process(pid_of(seen.pids[0]), Signal::KILL).expect("the agent is alive");
            kill_process(pid_of(seen.pids[1]), Signal::USR1).expect("the unit is alive");
        }
    });
    let error = result.expect_err("the agent is gone");
    assert!(
        matches!(
            error,
            Error::AgentLost {
                exit: Exit::Signal(9),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_program_that_cannot_be_executed_ends_what_was_started() {
    let mut job = plan([
        sh("a", "sleep 1000").units(3),
        Program::new("b", "/does/not/exist"),
    ]);
    job.starter = None;
    let (result, seen) = watch(&job, |_, _| {});
    assert!(matches!(result, Err(Error::Spawn { .. })), "{result:?}");
    assert_eq!(seen.pids.len(), 3);
}

#[test]
fn a_job_without_units_is_refused() {
    assert!(matches!(
        run(&plan([]), None, &mut |_| {}),
        Err(Error::NothingToRun { .. })
    ));
}
