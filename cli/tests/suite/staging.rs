//! The workflows whose programs hand each other their data by streams, small: they run, and their
//! results are verified.

use samite_testkit::require;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a workflow with its parameters given as `--name value`.
fn run(name: &str, parameters: &str, change: impl FnOnce(&mut Command)) -> Output {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows");
    let mut command = Command::new(env!("CARGO_BIN_EXE_samite"));
    command
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .arg("run")
        .arg(folder.join(name))
        .args(parameters.split_whitespace());
    change(&mut command);
    command.output().expect("samite can be started")
}

/// Runs a workflow that must succeed; what it prints. Each of `expected` is in it.
fn succeeds(name: &str, parameters: &str, expected: &[&str]) {
    let output = run(name, parameters, |_| ());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{parameters}: {text}{errors}");
    for expected in ["SUCCESSFUL"].iter().chain(expected) {
        assert!(
            text.contains(expected),
            "{parameters}: {expected}? {text}{errors}"
        );
    }
}

/// Nothing is mapped: all bytes travel by messages.
const BY_MESSAGES: &str = "--config fabric.mask=[map,kernel_copy]";

/// The Laplace job; its report lies where other tests' do not.
fn laplace(parameters: &str, expected: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder for the report");
    let report = folder.path().join("report.html");
    let parameters = format!("{parameters} --report {}", report.display());
    succeeds("laplace.toml", &parameters, expected);
    let html = std::fs::read_to_string(report).expect("the report is written");
    assert!(html.contains("bit by bit"), "{parameters}: {html}");
}

#[test]
fn moments_of_two_solvers_by_three_readers() {
    laplace(
        "--size 40 --steps 12 --units 2 --readers 3",
        &[
            "3200 of 3200 cells are equal",
            "2 write, 3 read",
            "52 of 52 parts",
        ],
    );
}

#[test]
fn moments_read_in_place() {
    let parameters = "--size 33 --steps 40 --units 3 --readers 3";
    laplace(parameters, &["123 of 123 parts", "kurtosis"]);
}

#[test]
fn moments_by_messages() {
    let parameters = format!("--size 20 --steps 5 --units 2 --readers 2 {BY_MESSAGES}");
    laplace(&parameters, &["800 of 800 cells", "0 of 12 parts"]);
}

#[test]
fn moments_of_higher_orders() {
    let parameters = "--size 17 --steps 20 --order 7 --units 1 --readers 2";
    laplace(parameters, &["order 7"]);
}

/// Units of the analysis without rows find nothing, and what the others find is complete.
#[test]
fn more_readers_than_rows() {
    let parameters = "--size 2 --steps 6 --units 1 --readers 3";
    laplace(parameters, &["4 of 4 cells"]);
}

#[test]
fn moments_that_are_not_checked() {
    let folder = tempfile::tempdir().expect("a folder for the report");
    let parameters = "--size 16 --steps 6 --check false";
    let output = run("laplace.toml", parameters, |command| {
        command
            .arg("--report")
            .arg(folder.path().join("report.html"));
    });
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("verification"), "{text}");
    assert!(text.contains("kurtosis"), "{text}");
}

#[test]
fn displacements_of_the_real_lammps() {
    let test = "staging::displacements_of_the_real_lammps";
    if let Err(error) = samite_lammps::Lammps::open(&[]) {
        require(test, false, &error.to_string());
        return;
    }
    // 5 x 5 x 5 and 5 x 5 x 6 cells of four atoms.
    let parameters = "--cells 5 --steps 60 --writers 2 --readers 3 --uneven true";
    let expected = ["1100 in 2 boxes", "61 of 61 steps compared"];
    succeeds("lammps-msd.toml", parameters, &expected);
    // What the edge promises holds for boxes of one length, and of several.
    for (uneven, atoms) in [("true", "1800 in 3 boxes"), ("false", "768 in 3 boxes")] {
        let cells = if uneven == "true" { 5 } else { 4 };
        let parameters = format!(
            "--cells {cells} --steps 10 --writers 3 --readers 2 --uneven {uneven} --config stage.method=graph"
        );
        let expected = [atoms, "11 of 11 steps compared"];
        succeeds("lammps-msd.toml", &parameters, &expected);
    }
    let parameters = format!("--cells 4 --steps 20 --every 5 {BY_MESSAGES}");
    let expected = ["256 in 1 boxes", "5 of 5 steps compared", "0 of 0 MB"];
    succeeds("lammps-msd.toml", &parameters, &expected);
    // Pieces of a server are smaller than the boxes.
    let parameters = "--cells 20 --steps 2 --writers 2 --servers 2 --config stage.method=server";
    let expected = ["64000 in 2 boxes", "3 of 3 steps compared"];
    succeeds("lammps-msd.toml", parameters, &expected);
    let parameters = "--cells 5 --steps 110 --measure true";
    let expected = ["11 of 1221 steps compared", "slowdown"];
    succeeds("lammps-msd.toml", parameters, &expected);
}

#[test]
fn lammps_that_is_missing_is_asked_for() {
    let output = run("lammps-msd.toml", "", |command| {
        command.env("SAMITE_LAMMPS", "/nowhere/at/all");
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("install it with ci/setup"), "{errors}");
}

#[test]
fn synthetic_rows_of_rows_in_place() {
    succeeds(
        "synthetic.toml",
        "--shape 60,50 --steps 7 --writers 3 --readers 3 --way alloc",
        &[
            "[60, 50] of f64",
            "21 of 21 boxes",
            "21000 of 21000 elements",
        ],
    );
}

#[test]
fn synthetic_columns_of_rows() {
    let parameters = "--shape 31,17,20 --steps 5 --writers 3 --readers 2 --pattern columns --dtype i16 --copy true";
    succeeds(
        "synthetic.toml",
        parameters,
        &["0 of 10 boxes", "52700 of 52700 elements"],
    );
}

#[test]
fn synthetic_transposed_blocks() {
    let parameters = "--shape 40,30 --steps 4 --writers 4 --readers 3 --cut blocks --pattern transpose --dtype f32";
    succeeds("synthetic.toml", parameters, &["4800 of 4800 elements"]);
}

#[test]
fn synthetic_random_boxes() {
    let parameters = "--shape 9,8,7,6 --steps 6 --writers 2 --readers 3 --cut columns --pattern boxes --dtype u8 --way alloc";
    succeeds("synthetic.toml", parameters, &["of 72 boxes"]);
}

#[test]
fn synthetic_hundredth_of_the_columns_by_messages() {
    let parameters = format!(
        "--shape 64,1000 --steps 6 --writers 2 --readers 2 --pattern percent --dtype u64 {BY_MESSAGES}"
    );
    succeeds(
        "synthetic.toml",
        &parameters,
        &["0 of 12 boxes", "7680 of 7680 elements"],
    );
}

#[test]
fn synthetic_more_units_than_rows() {
    let parameters = "--shape 2,5 --steps 3 --writers 4 --readers 3 --way put --compute 1ms";
    succeeds("synthetic.toml", parameters, &["30 of 30 elements"]);
}

#[test]
fn an_array_larger_than_memory_is_refused() {
    for (way, said) in [
        ("put", "no memory for this"),
        ("alloc", "write less per step"),
    ] {
        let parameters = format!("--shape 1000000000,1000000000 --steps 2 --way {way}");
        let output = run("synthetic.toml", &parameters, |_| ());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{way}: {errors}");
        assert!(errors.contains("nothing was started"), "{way}: {errors}");
        let parameters = format!("{parameters} --force");
        let output = run("synthetic.toml", &parameters, |_| ());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{way}: {errors}");
        assert!(errors.contains(said), "{way}: {errors}");
    }
}

/// A staging server stays for the others of its job, and all of these may have ended before it
/// looked for them.
#[test]
fn servers_of_programs_that_never_join_end() {
    let folder = tempfile::tempdir().expect("a folder for the workflow");
    let path = folder.path().join("flow.toml");
    let text = "[[program]]\nname = 'servers'\ncommand = 'stage-server'\nargs = ['--memory', '1 MiB']\n\
                [[program]]\nname = 'nothing'\ncommand = 'true'\nunits = 2\n";
    std::fs::write(&path, text).expect("it can be written");
    let output = run(path.to_str().expect("UTF-8"), "", |_| ());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}
