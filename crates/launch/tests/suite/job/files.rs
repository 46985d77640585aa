//! Standard input, files and folders of units.

use super::*;

#[test]
fn units_have_files_and_folders_of_their_own() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("in"), "seen\n").expect("the folder is there");
    let mut cat = sh(
        "cat",
        "cat; pwd; echo odd >&2; printf '\\036progress {\"step\":1}\\n'",
    )
    .units(2);
    cat.setup.stdin = Some(file("in"));
    cat.setup.cwd = Some(file("made/here"));
    cat.setup.stdout = Some(file("logs/all"));
    cat.setups = vec![cat.setup.clone(), cat.setup.clone()];
    cat.setups[1].stderr = Some(file("errors"));
    let (result, seen) = watch(&plan([cat]), |_, _| {});
    result.expect("all end well");
    let read = |name| std::fs::read_to_string(file(name)).expect("it was written");
    let all = read("logs/all");
    assert_eq!(all.matches("seen\n").count(), 2, "{all}");
    assert_eq!(all.matches("made/here\n").count(), 2, "{all}");
    assert_eq!(read("errors"), "odd\n");
    assert_eq!(
        (seen.lines.len(), seen.errors),
        (0, vec!["[cat.0] odd\n".to_owned()])
    );
    assert_eq!(seen.progress.len(), 2);
    // The last words of a unit whose output goes to a file are known all the same.
    let mut bad = sh("bad", "echo broken >&2; exit 3");
    bad.setup.stderr = Some(file("errors"));
    let (result, _) = watch(&plan([bad]), |_, _| {});
    let error = result.expect_err("it failed").to_string();
    assert!(error.contains("the last thing it said: broken"), "{error}");
    // A file that cannot be created: nothing is started. One that cannot be written is an error.
    let mut full = sh("full", "echo lost");
    full.setup.stdout = Some("/dev/full".into());
    let (result, seen) = watch(&plan([full.clone()]), |_, _| {});
    let error = result.expect_err("the disk is full");
    assert!(error.to_string().contains("/dev/full"), "{error}");
    assert_eq!(seen.pids.len(), 1);
    full.setup.stdout = Some(file("in").join("out"));
    let (result, seen) = watch(&plan([full]), |_, _| {});
    let error = result.expect_err("the file is no folder");
    assert!(matches!(error, Error::CreateOutput { .. }), "{error}");
    assert_eq!((seen.pids.len(), error.exit_code()), (0, 2));
}

/// A file that cannot be written is reported at once, and only once, also if the job fails because
/// of something else.
#[test]
fn output_that_cannot_be_written_is_reported_at_once() {
    let mut full = sh("full", "echo one; echo two; exit 3");
    full.setup.stdout = Some("/dev/full".into());
    let mut lost = Vec::new();
    let (result, _) = watch(&plan([full]), |event, seen| {
        if let Event::OutputLost { name, path, error } = event {
            assert_eq!(seen.ends, []);
            lost.push((name.to_string(), path.display().to_string(), error.kind()));
        }
    });
    assert_eq!(result.expect_err("the unit failed").exit_code(), 3);
    let once = (
        "full.0".to_owned(),
        "/dev/full".to_owned(),
        std::io::ErrorKind::StorageFull,
    );
    assert_eq!(lost, [once]);
}

/// One file under two paths has the lines of both streams.
#[test]
fn a_file_may_have_two_paths() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("log"), "old\n").expect("the folder is there");
    std::os::unix::fs::symlink(file("log"), file("link")).expect("the folder is there");
    let mut unit = sh("a", "echo one; echo two >&2; echo three; echo four >&2");
    unit.setup.stdout = Some(file("log"));
    unit.setup.stderr = Some(file("link"));
    watch(&plan([unit]), |_, _| {}).0.expect("it ends well");
    let log = std::fs::read_to_string(file("log")).expect("it was written");
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort();
    assert_eq!(lines, ["four", "one", "three", "two"]);
}

/// Nobody reads from the pipe: not when it is opened, and not when it is full.
#[test]
fn a_named_pipe_stops_no_launcher() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("the folder is there");
    let script = "i=0; while [ $i -lt 300 ]; do printf '%01024d\\n' 0; i=$((i+1)); done";
    let mut unit = sh("a", script);
    unit.setup.stdout = Some(path.clone());
    let job = plan([unit]);
    let (result, seen) = watch(&job, |_, _| {});
    let error = result.expect_err("nobody reads");
    let Error::CreateOutput { path: of, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((of, seen.pids.len()), (&path, 0));
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let _reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).expect("it is there");
    let error = watch(&job, |_, _| {}).0.expect_err("the pipe is full");
    let Error::OutputFile { path: of, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((of, error.exit_code()), (&path, 1));
}

/// A launcher that waits for the writer of a named pipe hears no signal, and ends nothing in time.
#[test]
fn a_standard_input_is_a_regular_file() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("the folder is there");
    let mut reader = sh("reader", "cat");
    reader.after = vec!["mesh".to_owned()];
    for path in [path.as_path(), folder.path()] {
        reader.setup.stdin = Some(path.to_owned());
        let (result, seen) = watch(&plan([sh("mesh", "true"), reader.clone()]), |_, _| {});
        let Err(Error::Spawn { name, source }) = result else {
            panic!("{result:?}")
        };
        let said = format!("{}: it is not a regular file", path.display());
        assert!(source.to_string().starts_with(&said), "{source}");
        assert_eq!((name.to_string(), seen.pids.len()), ("reader.0".into(), 1));
    }
}

/// A file that gets output is emptied before the job begins, so that only programs may read it that
/// come after those that write it. A program that reads what it writes would never end.
#[test]
fn standard_input_is_what_an_earlier_program_writes() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("mesh");
    std::fs::write(&file, "old\n").expect("the folder is there");
    let mut mesh = sh("mesh", "echo made");
    mesh.setup.stdout = Some(file.clone());
    let mut solver = sh("solver", "cat");
    solver.setup.stdin = Some(file.clone());
    let refused = |programs: [&Program; 3], said: &str| {
        let (result, seen) = watch(&plan(programs.map(Program::clone)), |_, _| {});
        let error = result.expect_err("it is refused");
        let name = file.display();
        let said = format!("{name} is the standard input of solver, which would {said}");
        assert!(error.to_string().starts_with(&said), "{error}");
        assert_eq!((error.exit_code(), seen.pids.len()), (2, 0));
        assert_eq!(std::fs::read_to_string(&file).expect("kept"), "old\n");
    };
    let other = sh("other", "true");
    refused([&mesh, &solver, &other], "find it empty or incomplete");
    // It comes after a program that does not write the file.
    solver.after = vec!["other".to_owned()];
    refused([&mesh, &solver, &other], "find it empty or incomplete");
    // It writes the file itself, which a symbolic link does not hide.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("the folder is there");
    let mut both = solver.clone();
    both.setup.stderr = Some(link);
    refused([&sh("mesh", "true"), &both, &other], "read its own output");
    // Between the two there may be others.
    let mut other = other;
    other.after = vec!["mesh".to_owned()];
    let (result, seen) = watch(&plan([mesh, solver, other]), |_, _| {});
    result.expect("all end well");
    assert_eq!(seen.lines, ["[solver.0] made\n"]);
}

/// A plan that cannot be sent to hosts is refused before a file of it is made or a host started.
#[test]
fn a_path_that_is_no_text_is_for_this_machine_only() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().expect("a scratch folder");
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
    let mut echo = sh("echo", "echo hi");
    echo.setup.stdout = Some(odd.clone());
    let mut plan = plan([echo]);
    let started = folder.path().join("started");
    plan.hosts.push(samite_launch::Host {
        name: "a".to_owned(),
        address: "10.0.0.1".to_owned(),
        command: vec!["touch".into(), started.clone().into()],
        transports: None,
        devices: None,
    });
    let (result, _) = watch(&plan, |_, _| {});
    let error = result.expect_err("it cannot be sent");
    assert!(matches!(error, Error::System { .. }), "{error}");
    assert!(!odd.exists() && !started.exists());
    plan.hosts.clear();
    let (result, _) = watch(&plan, |_, _| {});
    result.expect("it need not be sent");
    assert_eq!(std::fs::read(&odd).expect("it was made"), b"hi\n");
}
