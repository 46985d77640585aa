//! Which of several failures is reported as the cause.

use super::*;

/// Runs two programs, `hasty` and `culprit`; `culprit` begins when `hasty` has failed.
fn after_the_hasty(hasty: &str, culprit: &str, listen: Duration) -> String {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let gone = folder.path().join("gone");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done; ", gone.display());
    let mut job = plan([sh("hasty", hasty), sh("culprit", &(wait + culprit))]);
    (job.grace, job.listen) = (Duration::MAX, listen);
    let (result, _) = watch(&job, |event, _| {
        if matches!(event, Event::Ended { name, .. } if name.program() == "hasty") {
            std::fs::write(&gone, "").expect("the folder is there");
        }
    });
    result.expect_err("one failed").to_string()
}

/// The launcher waits for the words of the unit whose end was the cause.
#[test]
fn the_cause_is_reported_although_a_consequence_came_first() {
    let lost = "echo 'Error: culprit.0 was lost during a barrier' >&2; exit 1";
    let error = after_the_hasty(
        lost,
        "echo 'Error: the disk is full' >&2; exit 3",
        Duration::MAX,
    );
    let sentence = "culprit.0 ended with exit code 3; the last thing it said: Error: the disk is full; the other units were ended";
    assert_eq!(error, sentence);
    // Nobody fails by itself: then it is said who had left.
    let error = after_the_hasty("exit 0", lost, Duration::MAX);
    let sentence =
        "culprit.0 ended with exit code 1, after hasty.0 had ended without an error; the last";
    assert!(error.starts_with(sentence), "{error}");
    // An error of its own is the cause at once: what comes later was asked to end.
    let error = after_the_hasty("echo full >&2; exit 3", "exit 4", Duration::MAX);
    assert!(
        error.starts_with("hasty.0 ended with exit code 3"),
        "{error}"
    );
}

/// A unit that writes a long backtrace is asked to end meanwhile, and its panic is the cause.
#[test]
fn a_panic_is_the_cause_also_when_it_comes_late() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (up, words) = (file("up"), file("words"));
    let frames: String = (0..50)
        .map(|at| format!("  {at:2}: f\n          at b.rs:1:2\n"))
        .collect();
    let panic = "thread 'main' panicked at a.rs:1:2:\nno\nstack backtrace:\n";
    std::fs::write(&words, panic.to_owned() + &frames).expect("the folder is there");
    let culprit = format!("trap 'cat {words} >&2; exit 101' TERM; : > {up}; sleep 1000 & wait");
    let hasty = format!("until [ -e {up} ]; do sleep 0.01; done; echo Error: PeerLost >&2; exit 1");
    let mut job = plan([sh("culprit", &culprit), sh("hasty", &hasty)]);
    (job.grace, job.listen) = (Duration::MAX, Duration::ZERO);
    let (result, _) = watch(&job, |_, _| {});
    let error = result.expect_err("one failed").to_string();
    let sentence = "culprit.0 ended with exit code 101; the last thing it said:\n    thread 'main' panicked at a.rs:1:2:\n    no\n";
    assert!(error.starts_with(sentence), "{error}");
}

#[test]
fn a_killed_unit_is_reported_with_its_signal() {
    let job = plan([sh("a", "echo up; sleep 1000; true").units(2)]);
    let (result, _) = watch(&job, |event, seen| {
        if matches!(event, Event::Line(line) if line.name.rank() == Some(1)) {
            kill_process(pid_of(seen.pids[1]), Signal::KILL).expect("it is alive");
        }
    });
    let error = result.expect_err("one was killed");
    assert_eq!(error.exit_code(), 137);
    assert!(
        error
            .to_string()
            .starts_with("a.1 was killed by signal 9 (SIGKILL)"),
        "{error}"
    );
}

#[test]
fn a_unit_that_waits_for_its_restart_may_be_the_cause() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let lives = folder.path().join("lives");
    let (file, lost) = (lives.display(), "Error: flaky.0 was lost during a read");
    // The pause is 80 ms then.
    let script = format!(
        "until [ -e {file} ] && [ $(wc -l < {file}) -ge 4 ]; do sleep 0.01; done; echo {lost} >&2; \
         exit 1"
    );
    let (result, seen) = watch(&plan([failing(&lives), sh("reader", &script)]), |_, _| {});
    let error = result.expect_err("both fail").to_string();
    assert!(
        error.starts_with("flaky.0 ended with exit code 3"),
        "{error}"
    );
    assert_eq!(seen.pids.len(), seen.ends.len(), "each end is told");
}

/// A unit that is started again, or is optional, fails. Another one that failed because of it ends
/// the job when the launcher has forgiven the first.
#[test]
fn a_failure_that_was_pardoned_may_be_the_cause() {
    for (restart, optional) in [(1, false), (0, true)] {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let gone = folder.path().join("gone");
        let file = gone.display();
        let script = format!("[ -e {file} ] || exit 3; sleep 1000");
        let mut first = sh("first", &script);
        (first.restart, first.optional) = (restart, optional);
        let lost = "echo Error: first.0 was lost during a read >&2; exit 1";
        let script = format!("until [ -e {file} ]; do sleep 0.01; done; {lost}");
        let mut job = plan([first, sh("reader", &script)]);
        job.grace = Duration::MAX;
        let (result, _) = watch(&job, |event, seen| {
            let is_second_life = matches!(event, Event::Started { .. }) && seen.pids.len() == 3;
            if is_second_life || matches!(event, Event::Missed { .. }) {
                std::fs::write(&gone, "").expect("the folder is there");
            }
        });
        let error = result.expect_err("the reader fails").to_string();
        let sentence = "first.0 ended with exit code 3";
        assert!(error.starts_with(sentence), "{error}");
    }
}

/// A service that fails again and again is not the cause of a failure that names another unit.
#[test]
fn a_unit_in_its_pause_is_not_the_cause_of_all() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let lives = folder.path().join("lives");
    let (file, lost) = (lives.display(), "Error: no answer from other.0");
    let script = format!(
        "until [ -e {file} ] && [ $(wc -l < {file}) -ge 4 ]; do sleep 0.01; done; echo {lost} >&2; \
         exit 1"
    );
    let mut job = plan([
        failing(&lives),
        sh("other", "sleep 1000 & wait"),
        sh("reader", &script),
    ]);
    job.listen = Duration::ZERO;
    let (result, _) = watch(&job, |_, _| {});
    let error = result.expect_err("the reader fails").to_string();
    let sentence = "reader.0 ended with exit code 1; the last";
    assert!(error.starts_with(sentence), "{error}");
}

/// A unit is killed that would be started again, or is optional, but another one has failed because
/// of that before the launcher heard of either.
#[test]
fn a_failure_that_would_be_pardoned_may_be_the_cause() {
    for (restart, optional) in [(1, false), (0, true)] {
        let mut writer = sh("writer", "echo up; while :; do sleep 1000; done");
        (writer.restart, writer.optional) = (restart, optional);
        check_cause(writer);
    }
}

/// Kills the unit `writer.0`, and the one that waits for it, and checks that the first is reported.
fn check_cause(writer: Program) {
    let lost = "echo Error: writer.0 was lost during a read >&2; exit 1";
    let script = format!("trap '{lost}' USR1; echo up; while :; do sleep 0.01; done");
    let mut job = plan([sh("reader", &script), writer]);
    job.grace = Duration::MAX;
    let (result, seen) = watch(&job, |event, seen| {
        assert!(!matches!(event, Event::Ended { again: true, .. }));
        assert!(!matches!(event, Event::Missed { .. }), "the job ends");
        if matches!(event, Event::Line(line) if line.stream == Stream::Stdout)
            && seen.lines.len() == 2
        {
            for (pid, signal) in [(seen.pids[1], Signal::KILL), (seen.pids[0], Signal::USR1)] {
                kill_process(pid_of(pid), signal).expect("it is alive");
                wait_for_end(pid);
            }
        }
    });
    let error = result.expect_err("both failed").to_string();
    assert!(
        error.starts_with("writer.0 was killed by signal 9 (SIGKILL)"),
        "{error}"
    );
    assert_eq!(seen.ends.len(), 2);
}
