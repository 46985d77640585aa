//! What a workflow file can say of its programs: files, folders, order, failures, sweeps.

use super::{output, samite, stderr, stdout, workflow};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

fn run(folder: &Path, text: &str, arguments: &[&str]) -> Output {
    let file = workflow(folder, text);
    output(&[&["run", &file], arguments].concat())
}

#[test]
fn values_that_do_not_fit_are_refused_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = "parameters = { n = { required = true, type = 'integer', min = 1, help = 'rows' } }\n\
                [[program]]\nname = 'a'\ncommand = 'echo'\nargs = ['{n}']\nprefix = false\n";
    let said = |arguments: &[&str]| {
        let output = run(folder.path(), text, arguments);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stdout(&output).is_empty());
        stderr(&output)
    };
    assert!(said(&[]).contains("give it by --n VALUE"));
    assert!(said(&["--n", "x"]).contains("`n` is `x`, but has to be a whole number"));
    assert!(said(&["--n", "0"]).contains("`n` is 0, but has to be at least 1"));
    assert_eq!(stdout(&run(folder.path(), text, &["--n", "3"])), "3\n");
    let help = stdout(&run(folder.path(), text, &["--help"]));
    assert!(
        help.contains("rows [a whole number] [at least 1] [required]"),
        "{help}"
    );
}

#[test]
fn paths_are_relative_to_the_file() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    std::fs::write(folder.path().join("in"), "seen\n").expect("the folder is there");
    let text = "[[program]]\nname = 'a'\ncommand = 'sh'\nunits = 2\ncwd = 'made/{rank}'\nstdin = 'in'\n\
                stdout = 'logs/{rank}.out'\nargs = ['-c', 'cat; pwd; echo {folder}']\n";
    let output = run(folder.path(), text, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let written = std::fs::read_to_string(folder.path().join("logs/1.out")).expect("a file");
    let here = folder.path().canonicalize().expect("it is there");
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(lines[0], "seen");
    assert_eq!(lines[1], here.join("made/1").display().to_string());
    assert_eq!(lines[2], folder.path().display().to_string());
}

#[test]
fn failures_of_optional_units_and_restarts_are_said() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let tries = folder.path().join("tries").display().to_string();
    let text = format!(
        "[[program]]\nname = 'viewer'\ncommand = 'sh'\nargs = ['-c', 'echo no screen >&2; exit 3']\noptional = true\n\
         [[program]]\nname = 'solver'\ncommand = 'sh'\nrestart = 1\nafter = ['viewer']\n\
         args = ['-c', 'echo try >> {tries}; [ $(wc -l < {tries}) = 2 ]']\n"
    );
    let output = run(folder.path(), &text, &[]);
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let viewer = "samite: viewer.0 ended with exit code 3, and the job goes on, because it is optional: no screen\n";
    assert!(said.contains(viewer), "{said}");
    let solver = "samite: solver.0 ended with exit code 1, and is started again\n";
    assert!(said.contains(solver), "{said}");
}

/// Also if the job fails because of something else.
#[test]
fn a_file_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = "[[program]]\nname = 'a'\ncommand = 'sh'\nstdout = '/dev/full'\n\
                args = ['-c', 'echo lost; exit 3']\n";
    let output = run(folder.path(), text, &[]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let lost = "samite: cannot write the output of a.0 to /dev/full: No space left on device";
    assert!(said.contains(lost), "{said}");
}

#[test]
fn a_sweep_runs_each_combination_in_its_folder() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = "parameters = { n = 1 }\n[sweep]\nn = [1, 2, 3]\nfolder = 'runs/{n}'\n\
                [[program]]\nname = 'a'\ncommand = 'sh'\nargs = ['-c', 'echo {n} > out; [ {n} != 2 ]']\n";
    let output = run(folder.path(), text, &[]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("samite: run 2 of 3: n = 2 (in "), "{said}");
    assert!(
        said.contains("1 of 3 runs failed; the first one: the run with n = 2: a.0 "),
        "{said}"
    );
    for n in 1..=3 {
        let written = std::fs::read_to_string(folder.path().join(format!("runs/{n}/out")));
        assert_eq!(written.expect("each run has a folder"), format!("{n}\n"));
    }
    // A value on the command line is the only one.
    let output = run(folder.path(), text, &["--n", "5"]);
    assert!(
        stderr(&output).contains("run 1 of 1"),
        "{}",
        stderr(&output)
    );
    assert!(output.status.success());
}

/// The first run has failed already, and its other unit is still cleaning up.
#[test]
fn ctrl_c_ends_a_sweep_whose_run_has_failed() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = "parameters = { n = 1 }\n[sweep]\nn = [1, 2]\n\
                [[program]]\nname = 'a'\ncommand = 'sh'\nunits = 2\nargs = ['-c', '''\n\
                if [ $SAMITE_RANK = 0 ]; then until [ -e up ]; do sleep 0.01; done; exit 3; fi\n\
                clean() { echo asked; until [ -e {folder}/end ]; do sleep 0.01; done; exit 0; }\n\
                trap clean TERM; : > up; sleep 1000 & wait''']\n";
    let file = workflow(folder.path(), text);
    let mut child = samite()
        .args(["run", &file, "--config", "launch.grace=60 s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("samite can be started");
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe"));
    lines.read_line(&mut line).expect("the unit prints");
    assert_eq!(line, "[a.1] asked\n");
    let samite = Pid::from_child(&child);
    kill_process(samite, Signal::INT).expect("samite is running");
    std::fs::write(folder.path().join("end"), "").expect("the folder is there");
    let output = child.wait_with_output().expect("samite ends");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let sentence = "samite: the sweep was ended in the run with n = 1: a.0 ended with exit code 3";
    assert!(said.contains(sentence), "{said}");
    assert!(!folder.path().join("sweep/2").exists());
}

#[test]
fn the_form_of_the_file_is_printed_for_editors() {
    let schema = stdout(&output(&["schema"]));
    let schema: serde_json::Value = serde_json::from_str(&schema).expect("JSON");
    assert_eq!(schema["properties"]["schema"]["const"], 1);
}

/// Returns the first workflow of the guide.
fn workflow_of_the_guide() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide.md");
    let guide = std::fs::read_to_string(path).expect("the document is there");
    let mut blocks = guide.split("```");
    let text = blocks.find_map(|block| block.strip_prefix("toml\n"));
    text.expect("the guide has a workflow").to_owned()
}

#[test]
fn the_workflow_of_the_guide_runs() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = workflow(folder.path(), &workflow_of_the_guide());
    // The processors of this machine, which may have others than that of the guide.
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let cpus = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus = format!(
        "program.solver.cpus={}",
        cpus.expect("Linux says it").trim()
    );
    // Both values of the conditional argument.
    for omega in ["", "1.25"] {
        let run = [
            "run", &file, "--set", &cpus, "--size", "4", "--omega", omega,
        ];
        let output = samite().args(run).current_dir(&folder).output();
        let output = output.expect("samite can be started");
        assert!(output.status.success(), "{}", stderr(&output));
        let said = stdout(&output);
        assert!(said.contains("32 of 32 cells are equal"), "{said}");
        assert_eq!(said.contains("1.250000"), omega == "1.25", "{said}");
    }
    assert!(folder.path().join("logs/1.txt").exists());
}

/// Python prints each line at once, unless the user says otherwise.
#[test]
fn python_is_told_to_print_at_once() {
    for (given, expected) in [(None, "<1>"), (Some(""), "<>")] {
        let mut command = samite();
        command.args(["run", "sh", "-c", "echo \"<$PYTHONUNBUFFERED>\""]);
        match given {
            Some(value) => command.env("PYTHONUNBUFFERED", value),
            None => command.env_remove("PYTHONUNBUFFERED"),
        };
        let output = command.output().expect("samite can be started");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("[sh.0] {expected}\n"));
    }
}
