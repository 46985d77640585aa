//! What is set where, and words that mean nothing.

use super::{output, samite, stderr, stdout, workflow};
use std::path::Path;

#[test]
fn settings_are_shown_with_their_origin_and_read_back() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let show = |home: &Path| {
        let mut command = samite();
        command.args(["config", "show", "--origin", "--config", "launch.grace=3s"]);
        let output = command
            .env("XDG_CONFIG_HOME", home)
            .env("SAMITE_FABRIC_EAGER_MAX", "16 KiB")
            .output()
            .expect("samite can be started");
        stdout(&output)
    };
    let shown = show(folder.path());
    assert!(
        shown.contains("# SAMITE_FABRIC_EAGER_MAX") && shown.contains("# --config"),
        "{shown}"
    );
    std::fs::create_dir(folder.path().join("samite")).expect("a scratch folder can be written");
    std::fs::write(folder.path().join("samite/config.toml"), &shown).expect("it can be written");
    let values = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.split('#').next().unwrap_or("").trim().to_owned())
            .collect()
    };
    assert_eq!(values(&show(folder.path())), values(&shown));
}

/// Programs in different folders mean the same folder of streams: one of the workflow is relative
/// to its file, another one to where the command runs, and in a sweep to the folder of the run.
#[test]
fn programs_in_different_folders_share_the_folder_of_streams() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().canonicalize().expect("it is there");
    let unit = |name: &str| {
        format!(
            "[[program]]\nname = '{name}'\ncommand = 'sh'\ncwd = '{name}'\n\
             args = ['-c', 'echo \"$SAMITE_CONFIG\" | grep ^folder']\n"
        )
    };
    let programs = unit("a") + &unit("b") + "[config.stage.field]\nfolder = 'out'\n";
    for (rest, of_stream) in [
        ("", path.join("out")),
        (
            "[sweep]\nn = [1]\nfolder = 'runs/{n}'\n[parameters]\nn = 0\n",
            path.join("runs/1/out"),
        ),
    ] {
        let file = workflow(&path, &(programs.clone() + rest));
        for name in ["a", "b"] {
            let run = of_stream.parent().expect("it has one");
            std::fs::create_dir_all(run.join(name)).expect("a scratch folder can be written");
        }
        let output = output(&["run", "--tag-output=no", "--config=stage.folder=all", &file]);
        let mut shown: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
        shown.sort();
        shown.dedup();
        let here = std::env::current_dir().expect("it is there");
        let base = if rest.is_empty() {
            here
        } else {
            path.join("runs/1")
        };
        let folders = [base.join("all"), of_stream];
        let mut expected = folders.map(|folder| format!("folder = \"{}\"", folder.display()));
        expected.sort();
        let stderr = stderr(&output);
        assert_eq!(shown, expected, "{stderr}");
    }
}

/// The settings of a unit are text, and a folder need not be.
#[test]
fn a_folder_need_not_have_a_text_as_name() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&path).expect("a scratch folder can be written");
    workflow(&path, "[[program]]\nname = 'a'\ncommand = 'true'\n");
    let mut command = samite();
    command.current_dir(&path).args(["run", "flow.toml"]);
    let output = command.output().expect("samite can be started");
    assert!(output.status.success(), "{}", stderr(&output));
}

/// A launcher that is a unit has the settings of its own launcher, where neither its workflow nor
/// its options say more.
#[test]
fn a_nested_command_keeps_the_outer_settings() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = "[[program]]\nname = 'a'\ncommand = 'true'\n[config.fabric]\ndeadline = '7s'\nspin = '3us'\n";
    let file = workflow(folder.path(), text);
    let command = [
        "run",
        "--tag-output=no",
        "--config=fabric.deadline=9s",
        "--config=stage.field.method=local",
        "sh",
        "-c",
        r#""$0" config show --origin --config launch.grace=3s "$1""#,
        env!("CARGO_BIN_EXE_samite"),
        &file,
    ];
    let output = output(&command);
    let shown = stdout(&output);
    let has = |key: &str, value: &str, origin: &str| {
        let mut lines = shown.lines();
        lines.any(|line| line.starts_with(&format!("{key} = \"{value}\"")) && line.contains(origin))
    };
    assert!(has("deadline", "9s", "# SAMITE_CONFIG"), "{shown}");
    assert!(has("method", "local", "# SAMITE_CONFIG"), "{shown}");
    assert!(has("spin", "3us", "flow.toml"), "{shown}");
    assert!(has("grace", "3s", "# --config"), "{shown}");
    assert!(has("transport", "shm", "# default"), "{shown}");
    let nested = [
        "run",
        "--tag-output=no",
        "--config=fabric.deadline=9s",
        env!("CARGO_BIN_EXE_samite"),
        "run",
        "--tag-output=no",
        "sh",
        "-c",
        r#"echo "$SAMITE_CONFIG" | grep ^deadline"#,
    ];
    let output = super::output(&nested);
    assert_eq!(
        stdout(&output),
        "deadline = \"9s\"\n",
        "{}",
        stderr(&output)
    );
    // What was said counts more than an inner workflow, the default as well.
    let text = "[[program]]\nname = 'a'\ncommand = 'true'\n[config]\nstage.method = 'file'\n";
    let file = workflow(folder.path(), text);
    let nested = [
        "run",
        "--tag-output=no",
        "--config=stage.method=stream",
        env!("CARGO_BIN_EXE_samite"),
        "config",
        "show",
        "--origin",
        &file,
    ];
    let output = super::output(&nested);
    let shown = stdout(&output);
    let mut lines = shown.lines();
    let is_it =
        |line: &str| line.starts_with("method = \"stream\"") && line.contains("SAMITE_CONFIG");
    assert!(lines.any(is_it), "{shown}{}", stderr(&output));
}

/// What a command that is refused says; it is a mistake of whoever typed it.
fn refused(arguments: &[&str]) -> String {
    let output = output(arguments);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    said
}

#[test]
fn words_that_mean_nothing_are_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = "[[program]]\nname = 'a'\ncommand = 'true'\n";
    let reader = "[[program]]\nname = 'b'\ncommand = 'true'\n";
    let edge = "[[edge]]\nfrom = 'a'\nstream = 'synthetic'\nto = 'b'\n";
    let flow = workflow(folder.path(), &[program, reader, edge].concat());
    let said = refused(&["run", &flow, "extra", "words"]);
    assert!(said.contains("extra"), "{said}");
    let said = refused(&["run", &flow, &flow]);
    assert!(said.contains("flow.toml"), "{said}");
    let said = refused(&["run", &flow, "-n", "4"]);
    assert!(said.contains("-n is for a program"), "{said}");
    let said = refused(&["run", "-n", "4", &flow]);
    assert!(said.contains("leave out -n"), "{said}");
    for (setting, word) in [
        ("stage.synthetc.method=local", "did you mean `synthetic`?"),
        (
            "stage.synthetic.methd=local",
            "did you mean `stage.synthetic.method`?",
        ),
        (
            "stage.method=locl",
            "`locl` is not one of stream, local, server, graph, file; did you mean `local`?",
        ),
        (
            "stage.replicas=0",
            "at least 1 server has to keep each block",
        ),
        ("stage.limit_steps=0 steps", "1 step"),
        ("fabric.deadline=0s", "write a time"),
        (
            "launch.grace=18446744073709551615s",
            "is longer than a year",
        ),
        ("memory.budget=1 MiB", "2 units and the agent need 6.0 MiB"),
    ] {
        let said = refused(&["run", &flow, "--config", setting]);
        assert!(said.contains(word), "{setting}: {said}");
    }
    // The user's own file may have settings for the streams of other workflows.
    let home = folder.path().join("samite");
    std::fs::create_dir(&home).expect("a scratch folder can be written");
    std::fs::write(
        home.join("config.toml"),
        "[stage.synthetc]\nlease = \"1s\"\n",
    )
    .expect("it can be written");
    let run = |words: &[&str]| {
        let mut command = samite();
        let command = command.env("XDG_CONFIG_HOME", folder.path());
        command
            .args(words)
            .arg(&flow)
            .output()
            .expect("samite can be started")
    };
    let output = run(&["run"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = run(&["run", "--config", "stage.synthetc.method=local"]);
    assert!(
        stderr(&output).contains("did you mean `synthetic`?"),
        "{}",
        stderr(&output)
    );
    let said = refused(&["run", "-n", "447", "true"]);
    assert!(said.contains("has room for 446"), "{said}");
}
