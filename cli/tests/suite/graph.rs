//! Workflows with edges: the one that comes with Samite, and what is refused before a unit starts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn samite(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_samite"))
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .args(arguments)
        .output()
        .expect("samite can be started")
}

fn steering() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows/steering.toml")
}

fn runs(parameters: &str) -> String {
    let path = steering().display().to_string();
    let words: Vec<&str> = parameters.split_whitespace().collect();
    let output = samite(&[&["run", path.as_str()][..], &words].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{parameters}: {text}{errors}");
    assert!(text.contains("verification     SUCCESSFUL"), "{text}");
    text
}

/// Runs the workflow with a part of its text replaced, which ends with an error: its code, and what
/// it says.
fn fails(part: &str, by: &str, parameters: &[&str]) -> (Option<i32>, String) {
    let text = std::fs::read_to_string(steering()).expect("the workflow");
    assert!(text.contains(part), "{part}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("steering.toml");
    std::fs::write(&path, text.replacen(part, by, 1)).expect("a workflow");
    let path = path.display().to_string();
    let output = samite(&[&["run", path.as_str()][..], parameters].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{part} -> {by}: {text}");
    (output.status.code(), text)
}

#[test]
fn a_solver_is_steered_while_it_runs() {
    let folder = tempfile::tempdir().expect("a folder for the report");
    let report = folder.path().join("report.html");
    let text = runs(&format!(
        "--size 40 --units 2 --monitors 2 --tolerance 1e-2 --report {}",
        report.display()
    ));
    let html = std::fs::read_to_string(report).expect("the report is written");
    assert!(html.contains("Relaxation factor of each round"), "{html}");
    assert!(html.contains("3200 of 3200 cells"), "{html}");
    assert!(text.contains("3200 of 3200 cells"), "{text}");
    assert!(
        !text.contains("factor           1.2000 to 1.2000"),
        "{text}"
    );
}

#[test]
fn parts_may_be_uneven_and_empty() {
    // Two by one means for four units.
    let text = runs("--size 5 --units 1 --monitors 4 --sweeps 3 --coarse 4");
    assert!(text.contains("25 of 25 cells"), "{text}");
}

#[test]
fn a_solver_is_steered_by_messages() {
    let text = runs("--size 21 --units 3 --monitors 2 --config fabric.mask=[map,kernel_copy]");
    assert!(text.contains("1323 of 1323 cells"), "{text}");
}

#[test]
fn an_end_is_not_waited_for_in_vain() {
    let text = runs("--size 16 --tolerance 0 --rounds 7");
    assert!(text.contains("rounds           7 of 20 sweeps"), "{text}");
}

#[test]
fn a_graph_that_cannot_be_starts_nothing() {
    for (part, by, said) in [
        (
            "tokens = 1\n",
            "",
            "solver -> monitor -> solver wait for each other",
        ),
        ("to = \"check\"", "to = \"chek\"", "did you mean `check`"),
        (
            "redistribute = \"block\"",
            "redistribute = \"blocks\"",
            "did you mean `block`",
        ),
        ("mean {coarse}", "men {coarse}", "did you mean `mean`"),
        (
            "as = \"coarse\"",
            "as = \"coarse\"\nrates = 1",
            "did you mean `rate`",
        ),
        (
            "stage.method = \"graph\"",
            "",
            "is for streams with the method `graph`",
        ),
    ] {
        let (code, text) = fails(part, by, &[]);
        assert!(text.contains(said), "{text}");
        assert!(text.contains("steering.toml:"), "{text}");
        assert_eq!((code, text.lines().count()), (Some(2), 1), "{text}");
    }
}

#[test]
fn promises_and_links_that_do_not_hold_are_told() {
    let small = ["--size", "8", "--units", "1", "--monitors", "1"];
    let (_, text) = fails("dtype = \"f64\", block", "dtype = \"f32\", block", &small);
    assert!(text.contains("solver promised monitor u as f32"), "{text}");
    assert!(text.contains("step 0 has u as f64"), "{text}");
    let (_, text) = fails("as = \"coarse\"", "as = \"course\"", &small);
    assert!(
        text.contains("no edge leads a stream called `coarse` to monitor"),
        "{text}"
    );
    assert!(text.contains("solver/field -> monitor/course"), "{text}");
    let (_, text) = fails("\"mean {coarse}\"", "\"mine:coarse\"", &small);
    assert!(text.contains("stage.operator(\"coarse\""), "{text}");
}

#[test]
fn an_edge_is_changed_for_one_run() {
    let text = runs("--size 20 --monitors 2 --set edge.monitor.coarse.redistribute=count");
    assert!(text.contains("800 of 800 cells"), "{text}");
    let same = "tokens = 1";
    for (setting, said) in [
        (
            "edge.solver.orders.tokens=0",
            "solver -> monitor -> solver wait for each other",
        ),
        ("edge.monitor.coarse.operators=men 2", "did you mean `mean`"),
        (
            "edge.monitor.course.rate=latest",
            "there is no edge `monitor.course`; did you mean `monitor.coarse`?",
        ),
    ] {
        let (code, text) = fails(same, same, &["--set", setting]);
        assert!(text.contains(said), "{text}");
        assert_eq!((code, text.lines().count()), (Some(2), 1), "{text}");
    }
}
