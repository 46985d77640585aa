//! The reader against writers that are not what they should be: it fails, and says why.
//!
//! Unit 0 of a test keeps the stream, as the agent of a node does; then come a writer and a reader.
#![forbid(unsafe_code)]

use clap::Parser;
use ndarray::Array1;
use samite::stage::Stage;
use samite::stage::protocol::Attribute;
use samite::stage::service::{Capacity, Staging};
use samite::{Fabric, Identity};
use samite_synthetic::{Error, reader, value};
use samite_testkit::{Outcome, Tracker, Unit, check, units};

const SHAPE: [u64; 1] = [100];

/// Writes two steps; `place` has what another one should have.
fn write(fabric: &Fabric, wrong: Option<u64>, steps: Option<Attribute>) -> Outcome {
    let stage = Stage::join(fabric)?;
    let mut writer = stage.writer("synthetic")?;
    for number in 0..2 {
        let is_wrong = |place| wrong == Some(place) && number == 1;
        let element =
            |place| value::value::<u32>(number, if is_wrong(place) { place + 1 } else { place });
        let array: Array1<u32> = (0..SHAPE[0]).map(element).collect();
        let mut step = writer.step()?;
        step.put("u", SHAPE, [0_u64], array.view())?;
        if let Some(steps) = &steps {
            step.attribute("steps", steps.clone());
        }
        step.commit()?;
    }
    Ok(writer.close()?)
}

/// What the reader says of such a stream.
fn read(
    name: &str,
    wrong: Option<u64>,
    steps: Option<Attribute>,
    is_expected: impl Fn(&Result<(), Error>, &str) -> bool,
) {
    let body = |unit: &Unit| {
        if unit.rank == 0 {
            let fabric =
                Fabric::join(&unit.domain, samite::agent::identity(), unit.config.clone())?;
            let capacity = Capacity {
                memory: 64 << 20,
                disk: 0,
                folder: std::env::temp_dir(),
            };
            let mut tracker = Tracker::expect(2);
            Staging::new(&fabric, capacity).run(|fabric| tracker.remain(fabric))?;
            return Ok(());
        }
        let identity = Identity {
            program: ["writer", "reader"][unit.rank as usize - 1].into(),
            rank: 0,
            size: 1,
            ..unit.identity()
        };
        let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
        if unit.rank == 1 {
            return write(&fabric, wrong, steps.clone());
        }
        let mut out = Vec::new();
        let ended = reader::run(&fabric, &reader::Args::parse_from(["reader"]), &mut out);
        let text = String::from_utf8_lossy(&out);
        check!(is_expected(&ended, &text), "{ended:?}\n{text}");
        Ok(())
    };
    units(3).orchestrate_bare(name, body, |_| {});
}

#[test]
fn what_was_written_is_right() {
    let steps = Some(Attribute::Integer(2));
    read("what_was_written_is_right", None, steps, |ended, text| {
        ended.is_ok() && text.contains("SUCCESSFUL: 200 of 200")
    });
}

#[test]
fn a_wrong_element_is_an_error() {
    let steps = Some(Attribute::Integer(2));
    read(
        "a_wrong_element_is_an_error",
        Some(17),
        steps,
        |ended, text| {
            let is_found = matches!(
                ended,
                Err(Error::Wrong {
                    wrong: 1,
                    elements: 200,
                    step: 1,
                    place: 17
                })
            );
            is_found && text.contains("FAILED: 199 of 200")
        },
    );
}

fn is_untold(ended: &Result<(), Error>, text: &str) -> bool {
    matches!(ended, Err(Error::Untold(0))) && text.is_empty()
}

#[test]
fn a_writer_that_does_not_say_how_many_steps_there_are_is_refused() {
    let name = "a_writer_that_does_not_say_how_many_steps_there_are_is_refused";
    read(name, None, None, is_untold);
}

#[test]
fn a_number_of_steps_that_is_none_is_refused() {
    let steps = Some(Attribute::Integer(-1));
    read(
        "a_number_of_steps_that_is_none_is_refused",
        None,
        steps,
        is_untold,
    );
}
