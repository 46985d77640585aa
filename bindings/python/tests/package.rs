//! Runs the tests of the package, which are written in Python, with the module as this build has
//! made it.

use samite_testkit::require;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder into which Cargo has put this program and the module.
fn built() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    program.parent().expect("it lies in a folder").to_owned()
}

/// Makes a folder with the package as it is installed.
fn install(folder: &Path) {
    let package = folder.join("samite");
    std::fs::create_dir_all(&package).expect("the folder can be made");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/samite");
    for file in std::fs::read_dir(sources)
        .expect("the package is there")
        .flatten()
    {
        if file.path().extension().is_some_and(|end| end == "py") {
            std::fs::copy(file.path(), package.join(file.file_name())).expect("it can be copied");
        }
    }
    let module = built().join("lib_samite.so");
    std::os::unix::fs::symlink(module, package.join("_samite.abi3.so")).expect("it can be linked");
}

/// Returns whether an interpreter has these modules.
fn has(python: &Path, modules: &[&str]) -> bool {
    let script =
        "import sys, importlib.util as i; sys.exit(not all(map(i.find_spec, sys.argv[1:])))";
    let ended = Command::new(python)
        .args(["-c", script])
        .args(modules)
        .status();
    ended.is_ok_and(|ended| ended.success())
}

/// Runs the tests of a file.
fn run(test: &str, file: &str, modules: &[&str]) {
    let python = samite_testkit::python().filter(|python| has(python, modules));
    let Some(python) = python else {
        require(
            test,
            false,
            "install the packages of ci/python.txt: ci/setup",
        );
        return;
    };
    let folder = tempfile::tempdir().expect("a folder can be made");
    install(folder.path());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [built().join("..")]
        .into_iter()
        .chain(std::env::split_paths(&path));
    let mut command = Command::new(python);
    command
        .args(["-B", "-m", "unittest", "-v", file])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
        .env(
            "PATH",
            std::env::join_paths(path).expect("no folder has a colon"),
        )
        .env("PYTHONPATH", folder.path());
    let ended = command.output().expect("the interpreter can be started");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success(),
        "{}{said}",
        String::from_utf8_lossy(&ended.stdout)
    );
    // Older versions of Python take no test for a success.
    assert!(
        said.contains("\nRan ") && !said.contains("\nRan 0 "),
        "{said}"
    );
    require(test, !said.contains("... skipped"), &said);
}

#[test]
fn memory_errors_and_waits() {
    run("memory_errors_and_waits", "test_alone.py", &["numpy"]);
}

#[test]
fn kernels() {
    run("kernels", "test_kernels.py", &["numpy", "numba"]);
}

/// Runs the tests of a file that starts jobs.
fn run_with_command(test: &str, file: &str) {
    let samite = built().join("../samite");
    let why = "build the command first: cargo build -p samite-cli";
    if require(test, samite.exists(), why) {
        run(test, file, &["numpy", "numba"]);
    }
}

#[test]
fn jobs() {
    run_with_command("jobs", "test_jobs.py");
}

#[test]
fn guide() {
    run_with_command("guide", "test_guide.py");
}
