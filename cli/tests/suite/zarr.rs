//! A stream as a Zarr store, and the store as a stream: the reader of the second finds every
//! element where the writer of the first had put it.

use std::path::Path;
use std::process::{Command, Output};

/// Runs a workflow of these programs.
fn run(folder: &Path, programs: &[(&str, &str, &str)]) -> Output {
    run_with("", folder, programs)
}

/// The same with these settings.
fn run_with(settings: &str, folder: &Path, programs: &[(&str, &str, &str)]) -> Output {
    let mut text = settings.to_owned();
    for (name, units, line) in programs {
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let args: Vec<&str> = words.collect();
        text += &format!(
            "[[program]]\nname = \"{name}\"\ncommand = \"{command}\"\nargs = {args:?}\nunits = {units}\n"
        );
    }
    let file = folder.join("workflow.toml");
    std::fs::write(&file, text).expect("the folder is there");
    let mut command = Command::new(env!("CARGO_BIN_EXE_samite"));
    command
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .arg("run")
        .arg(file);
    command.output().expect("samite can be started")
}

#[cfg(feature = "zarr")]
#[test]
fn a_stream_through_a_zarr_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!(
        "--stream synthetic --folder {}/store",
        folder.path().display()
    );
    let text = |output: &Output| {
        let [said, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        format!("{said}{errors}")
    };
    let output = run(
        folder.path(),
        &[
            (
                "writer",
                "3",
                "synthetic-writer --shape 31,40 --steps 5 --dtype i32 --cut blocks",
            ),
            ("archive", "1", &format!("stage-archive {store}")),
        ],
    );
    assert!(output.status.success(), "{}", text(&output));
    let bytes = 5 * 31 * 40 * 4;
    let said = text(&output);
    assert!(
        said.lines()
            .any(|line| line.contains("bytes") && line.ends_with(&bytes.to_string())),
        "{said}"
    );
    // A reader that starts later leaves what is before its first step, and says so.
    let later = [
        (
            "writer",
            "3",
            "synthetic-writer --shape 31,40 --steps 5 --dtype i32 --cut blocks",
        ),
        ("archive", "1", &format!("stage-archive {store}")),
    ];
    let output = run_with(
        "[config.stage]\nstart = \"step 3\"\n",
        folder.path(),
        &later,
    );
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let row = |name: &str, value: &str| {
        let mut lines = said.lines();
        lines.any(|line| line.contains(name) && line.ends_with(value))
    };
    assert!(
        row(" steps ", " 2") && row("older steps that stay", " 3"),
        "{said}"
    );
    let output = run(
        folder.path(),
        &[
            ("replay", "2", &format!("stage-replay {store}")),
            ("reader", "2", "synthetic-reader --pattern columns"),
        ],
    );
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("6200 of 6200 elements") && said.contains("SUCCESSFUL"),
        "{said}"
    );
}

#[cfg(not(feature = "zarr"))]
#[test]
fn a_build_without_zarr_says_how_to_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let line = "stage-archive --stream field --folder store";
    let output = run(folder.path(), &[("archive", "1", line)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("--features samite-cli/zarr"), "{errors}");
}
