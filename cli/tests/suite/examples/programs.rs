//! The examples as programs, and what they print.

use crate::examples::mistakes;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Termination};
use tempfile::TempDir;

/// Names the variable that says which example this process is.
const EXAMPLE: &str = "EXAMPLE";

/// Makes a module and a name of each example.
macro_rules! examples {
    ($($path:literal $name:ident)*) => {
        $(
            #[allow(clippy::duplicate_mod, reason = "another test has one of them, too")]
            #[path = $path]
            mod $name;
        )*
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Runs an example in this process.
        fn main_of(name: &str) -> ExitCode {
            match name {
                $(stringify!($name) => $name::main().report(),)*
                "no_close" => mistakes::no_close::main().report(),
                "no_exchange" => mistakes::no_exchange::main().report(),
                "wrong_tag" => mistakes::wrong_tag::main().report(),
                _ => panic!("no example is called {name}"),
            }
        }
    };
}

examples! {
    "../../../../crates/samite/examples/codons.rs" codons
    "../../../../crates/samite/examples/double.rs" double
    "../../../../crates/samite/examples/heat.rs" heat
    "../../../../crates/samite/examples/heat_alone.rs" heat_alone
    "../../../../crates/samite/examples/heat_picture.rs" heat_picture
    "../../../../crates/samite/examples/heat_solver.rs" heat_solver
    "../../../../crates/samite/examples/hello.rs" hello
    "../../../../crates/samite/examples/life.rs" life
    "../../../../crates/samite/examples/neighbours.rs" neighbours
    "../../../../crates/samite/examples/ring.rs" ring
    "../../../../crates/samite/examples/scope.rs" scope
    "../../../../crates/samite/examples/slow_writer.rs" slow_writer
    "../../../../crates/samite/examples/sort.rs" sort
    "../../../../crates/samite/examples/stage_reader.rs" stage_reader
    "../../../../crates/samite/examples/stage_writer.rs" stage_writer
    "../../../../crates/samite/examples/threads.rs" threads
    "../../../../crates/samite/examples/two_programs.rs" two_programs
    "../../../../crates/samite/examples/watch.rs" watch
    "../../../../crates/samite/examples/woven.rs" woven
}

/// In a process that a script of [`Programs`] started: becomes the example. Otherwise checks that
/// no example is missing.
#[test]
fn every_example_is_here() {
    if let Ok(name) = std::env::var(EXAMPLE) {
        let is_success = main_of(&name) == ExitCode::SUCCESS;
        std::process::exit(i32::from(!is_success));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/samite/examples");
    let files = std::fs::read_dir(folder).expect("there are examples");
    let files = files.map(|file| file.expect("it can be listed").file_name());
    let files = files.map(|name| name.to_string_lossy().into_owned());
    let mut found: Vec<String> = files
        .filter_map(|name| Some(name.strip_suffix(".rs")?.to_owned()))
        .collect();
    found.sort();
    assert_eq!(found, NAMES);
}

/// A folder like that of a package, with all examples in `target/debug`.
pub(crate) struct Programs(TempDir);

impl Programs {
    pub(crate) fn new() -> Programs {
        let programs = Programs(tempfile::tempdir().expect("there is a temporary folder"));
        std::fs::create_dir_all(programs.path("target/debug")).expect("a folder can be made");
        NAMES.iter().for_each(|name| programs.put(name, name));
        programs
    }

    /// Makes the program `name`, which is this example, or this mistake.
    pub(crate) fn put(&self, name: &str, example: &str) {
        let this = std::env::current_exe().expect("a test binary has a path");
        // Quiet: the name of the test does not begin a line of the example.
        let script = format!(
            "#!/bin/sh\n{EXAMPLE}={example} exec '{}' --quiet --nocapture --exact {}\n",
            this.display(),
            "examples::programs::every_example_is_here",
        );
        let path = format!("target/debug/{name}");
        self.write(&path, &script);
        let may_run = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(&path), may_run).expect("it is our file");
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("the folder can be written");
    }

    /// Runs `samite run` in this folder; returns whether it succeeded, and what it printed.
    pub(crate) fn try_run(&self, words: &str) -> (bool, Lines) {
        let output = Command::new(env!("CARGO_BIN_EXE_samite"))
            .current_dir(&self.0)
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .env_remove("SAMITE_LOG")
            .arg("run")
            .args(words.split_whitespace())
            .output()
            .expect("samite can be started");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        (output.status.success(), Lines(text))
    }

    /// Runs a job that must succeed.
    pub(crate) fn run(&self, words: &str) -> Lines {
        let (is_success, lines) = self.try_run(words);
        assert!(is_success, "samite run {words}\n{}", lines.0);
        lines
    }
}

/// What a job printed.
pub(crate) struct Lines(pub(crate) String);

impl Lines {
    /// Checks that there is this line.
    pub(crate) fn has(&self, line: &str) {
        assert!(
            self.0.lines().any(|printed| printed == line),
            "{line}? {}",
            self.0
        );
    }

    /// Returns what one unit printed, without what the test harness adds.
    pub(crate) fn of(&self, unit: &str) -> Vec<&str> {
        let before = format!("[{unit}] ");
        let said = self.0.lines().filter_map(|line| line.strip_prefix(&before));
        let of_harness = ["", "running 1 test"];
        said.skip_while(|line| of_harness.contains(line)).collect()
    }
}
