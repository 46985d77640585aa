//! Programs that wait for each other: whoever is told so may do something else, and all go on.

use crate::faults::{check_step, write};
use crate::staged::{Play, next, stage};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{EndOfStream, Fault};
use samite_stage::{Error, Settings};
use samite_testkit::{Outcome, check, full_name, same};
use std::time::Duration;

/// Longer than the agent is kept waiting on a busy machine.
const DEADLINE: Duration = Duration::from_secs(3);

fn is_circle(error: &Error) -> bool {
    let waits = match error {
        Error::Fault(Fault::Circle { waits }) => waits,
        _ => return false,
    };
    let field = "solver.0 waits for capacity in field until analysis.0 reads";
    let control = "analysis.0 waits for solver.0 to commit step 0 of control";
    waits.len() == 2
        && [field, control]
            .iter()
            .all(|wait| waits.iter().any(|is| is == wait))
}

/// One writes a step of the field more than fits before it writes the control; the other one wants
/// the control first. Each mends it when it is told, and without that nothing would ever end.
#[test]
fn programs_in_a_circle_are_told() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| -> Outcome {
        let settings = Settings {
            steps: Some(1),
            ..Settings::default()
        };
        let stage = stage(fabric, settings)?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            let mut control = stage.write("control").as_rank("solver", 0, 1).open()?;
            same!(write(&mut field)?, 0);
            fabric.set_deadline(DEADLINE);
            let mut is_told = false;
            while let Err(error) = write(&mut field) {
                check!(is_circle(&error) && !is_told, "{error}");
                is_told = true;
                same!(write(&mut control)?, 0);
            }
            if !is_told {
                same!(write(&mut control)?, 0);
            }
            fabric.set_deadline(Duration::from_secs(20));
            field.close()?;
            return Ok(control.close()?);
        }
        let mut field = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let mut control = stage.read("control").as_rank("analysis", 0, 1).open()?;
        fabric.set_deadline(DEADLINE);
        let mut taken = 0;
        let first = loop {
            match control.next_step() {
                Ok(first) => break first,
                Err(error) => {
                    check!(is_circle(&error) && taken == 0, "{error}");
                    check_step(&next(&mut field)?)?;
                    taken += 1;
                }
            }
        };
        check!(first.is_some_and(|step| check_step(&step).is_ok()));
        for number in taken..2 {
            let step = next(&mut field)?;
            same!(step.number(), number);
            check_step(&step)?;
        }
        fabric.set_deadline(Duration::from_secs(20));
        for reader in [&mut field, &mut control] {
            check!(reader.next_step()?.is_none());
            same!(reader.end(), Some(EndOfStream::Closed));
        }
        Ok(())
    };
    let name = full_name(module_path!(), "programs_in_a_circle_are_told");
    play.run(&name, body, |cluster| cluster.all_end());
}
