//! Units that are started again, cannot be started, or are optional.

use super::*;
use std::time::Instant;

#[test]
fn a_unit_that_fails_is_started_again() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("tries").display().to_string();
    let script = format!("echo try >> {file}; echo $SAMITE_RANK; [ $(wc -l < {file}) = 3 ]");
    let mut flaky = sh("flaky", &script);
    flaky.restart = 2;
    let (result, seen) = watch(&plan([flaky.clone()]), |_, _| {});
    result.expect("the third try ends well");
    assert_eq!(seen.lines, ["[flaky.0] 0\n"; 3]);
    std::fs::remove_file(&file).expect("it is there");
    flaky.restart = 1;
    let (result, seen) = watch(&plan([flaky]), |_, _| {});
    assert_eq!(result.expect_err("both tries fail").exit_code(), 1);
    assert_eq!(seen.lines.len(), 2);
}

#[test]
fn a_job_may_end_while_a_unit_waits_for_its_restart() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut job = plan([failing(&folder.path().join("lives"))]);
    job.timeout = Some(Duration::from_millis(300));
    let mut is_last = false;
    let (result, seen) = watch(&job, |event, _| {
        if let Event::Ended { again, .. } = event {
            assert!(!is_last, "an end after the last one");
            is_last = !again;
        }
    });
    assert_eq!(result.expect_err("it never ends well").exit_code(), 124);
    assert!(is_last, "the last life has no successor");
    assert_eq!(seen.pids.len(), seen.ends.len(), "each end is told");
}

/// Returns what a unit does that waits for a while, and says so when it is asked to end.
fn careful(up: &Path) -> String {
    let up = up.display();
    format!("trap 'echo asked; exit 0' TERM; : > {up}; sleep 1000 & wait")
}

/// Checks that a unit could not be started because of this path, and that `careful` was asked to
/// end.
fn check_start(result: Result<(), Error>, seen: &Seen, unit: &str, path: &Path) {
    let Err(Error::Spawn { name, source }) = result else {
        panic!("{result:?}")
    };
    assert_eq!(name.to_string(), unit);
    let path = path.display().to_string();
    assert!(source.to_string().starts_with(&path), "{source}");
    assert_eq!(seen.lines, ["[careful.0] asked\n"]);
    let ended = ("careful.0".to_owned(), Exit::Code(0));
    assert!(seen.ends.contains(&ended), "{:?}", seen.ends);
}

/// The units of a job that runs have their grace, whatever ends it.
#[test]
fn a_unit_that_cannot_be_started_later_ends_the_job_as_a_failure_does() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name);
    let up = file("up");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", up.display());
    let mut late = sh("late", "true").units(2);
    late.after = vec!["mesh".to_owned()];
    // The first unit of the program can be started.
    late.setups = vec![late.setup.clone(), late.setup.clone()];
    late.setups[1].stdin = Some(file("missing"));
    let mut job = plan([sh("careful", &careful(&up)), sh("mesh", &wait), late]);
    job.grace = Duration::MAX;
    let (result, seen) = watch(&job, |_, _| {});
    check_start(result, &seen, "late.1", &file("missing"));
    assert_eq!((seen.pids.len(), seen.ends.len()), (3, 3));
    // The same for a unit that is started again, in a folder that cannot be created by then.
    std::fs::remove_file(&up).expect("it is there");
    let made = file("made").display().to_string();
    let script = format!("{wait}; cd /; rmdir {made}; : > {made}; exit 3");
    let mut flaky = sh("flaky", &script);
    flaky.setup.cwd = Some(file("made"));
    flaky.restart = 1;
    let mut job = plan([sh("careful", &careful(&up)), flaky]);
    job.grace = Duration::MAX;
    let (result, seen) = watch(&job, |event, _| {
        assert!(!matches!(event, Event::Ended { again: true, .. }));
    });
    check_start(result, &seen, "flaky.0", &file("made"));
}

#[test]
fn the_job_goes_on_without_an_optional_unit_that_cannot_be_started_again() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let [made, gone] = ["made", "gone"].map(|name| folder.path().join(name));
    let path = made.display().to_string();
    let mut viewer = sh("viewer", &format!("cd /; rmdir {path}; : > {path}; exit 3"));
    viewer.setup.cwd = Some(made.clone());
    (viewer.restart, viewer.optional) = (1, true);
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", gone.display());
    let mut missed = Vec::new();
    let (result, _) = watch(&plan([viewer, sh("solver", &wait)]), |event, _| {
        if let Event::Missed { name, exit, said } = event {
            missed.push((name.to_string(), *exit));
            assert!(said[0].contains(&path), "{said:?}");
            std::fs::write(&gone, "").expect("the folder is there");
        }
    });
    result.expect("the solver ends well");
    assert_eq!(missed, [("viewer.0".to_owned(), Exit::Code(3))]);
}

/// The event of an end comes when it is known what follows, but it says when the end was.
#[test]
fn there_is_a_pause_between_an_end_and_the_next_start() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut flaky = failing(&folder.path().join("lives"));
    flaky.restart = 3;
    let (mut pauses, mut ended) = (Vec::new(), None);
    let (result, _) = watch(&plan([flaky]), |event, _| match event {
        Event::Started { .. } => pauses.extend(ended.map(|at: Instant| at.elapsed())),
        Event::Ended { at, .. } => ended = Some(*at),
        _ => {}
    });
    result.expect_err("it never ends well");
    let least = [10, 20, 40].map(Duration::from_millis);
    assert_eq!(pauses.len(), least.len());
    assert!(
        pauses
            .iter()
            .zip(least)
            .all(|(pause, least)| *pause >= least),
        "{pauses:?}"
    );
}

#[test]
fn the_job_goes_on_without_an_optional_unit() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let gone = folder.path().join("gone");
    let mut viewer = sh("viewer", "echo no screen >&2; exit 3");
    viewer.optional = true;
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", gone.display());
    let mut missed = Vec::new();
    let (result, _) = watch(&plan([viewer, sh("solver", &wait)]), |event, _| {
        if let Event::Missed { name, exit, said } = event {
            missed.push((name.to_string(), *exit, said.clone()));
            std::fs::write(&gone, "").expect("the folder is there");
        }
    });
    result.expect("the solver ends well");
    let viewer = (
        "viewer.0".to_owned(),
        Exit::Code(3),
        vec!["no screen".to_owned()],
    );
    assert_eq!(missed, [viewer]);
}
