//! What staging costs who uses it: the lines of the two example programs, counted as the study's
//! Table III counts, and the programs themselves, which run.

#[allow(dead_code, reason = "its `main` is for when it is a program")]
#[path = "../../examples/stage_reader.rs"]
mod stage_reader;
#[allow(dead_code, reason = "its `main` is for when it is a program")]
#[path = "../../examples/stage_writer.rs"]
mod stage_writer;

use samite::stage::service::{Capacity, Staging};
use samite::{Fabric, Identity};
use samite_testkit::{Failed, Outcome, Tracker, Unit, units};

/// Lines that do something for staging: in the bodies of functions, neither the program's own nor
/// what every function ends with.
fn effort(program: &str) -> usize {
    let code = program.lines().map(str::trim);
    let mut inside = code.skip_while(|line| !line.contains("fn main"));
    inside.next();
    let counts = |line: &&str| {
        let is_frame = line.starts_with("//") || line.contains("fn ") || *line == "Ok(())";
        let is_own = line.ends_with("// own") || line.starts_with("for number");
        !is_frame && !is_own && line.chars().any(char::is_alphanumeric)
    };
    inside.filter(counts).count()
}

#[test]
fn seven_lines_write_four_read_and_six_run() {
    assert_eq!(effort(include_str!("../../examples/stage_writer.rs")), 7);
    assert_eq!(effort(include_str!("../../examples/stage_reader.rs")), 4);
    let workflow = include_str!("../../examples/stage_writer.rs").lines();
    let workflow = workflow.filter(|line| line.starts_with("//! [[") || line.contains(" = \""));
    assert_eq!(workflow.count(), 6);
}

#[test]
fn the_guide_says_the_same() {
    let guide = include_str!("../../../../docs/staging.md");
    let row = guide.lines().find(|line| line.starts_with("| **Samite**"));
    let row = row.expect("Table III has a row for Samite");
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    assert_eq!(cells[2..6], ["0 + 6", "0", "10", "16"], "{row}");
}

fn as_program(unit: &Unit, program: &str) -> Outcome<Fabric> {
    let identity = Identity {
        program: program.into(),
        rank: 0,
        size: 1,
        ..unit.identity()
    };
    let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
    Ok(fabric)
}

#[test]
fn the_programs_run() {
    let said = |error: Box<dyn std::error::Error>| Failed::new(error);
    let part = |unit: &Unit| match unit.rank {
        0 => {
            let fabric =
                Fabric::join(&unit.domain, samite::agent::identity(), unit.config.clone())?;
            let mut tracker = Tracker::expect(2);
            let mut service = Staging::new(&fabric, Capacity::of_memory(64 << 20));
            Ok(service.run(|fabric| tracker.remain(fabric))?)
        }
        1 => stage_writer::write(&as_program(unit, "writer")?).map_err(said),
        _ => stage_reader::read(&as_program(unit, "reader")?).map_err(said),
    };
    units(3).orchestrate_bare("effort::the_programs_run", part, |_| ());
}
