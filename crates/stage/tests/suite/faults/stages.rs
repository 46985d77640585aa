//! One process that joins more than once.

use crate::faults::{check_step, write};
use crate::staged::{Play, next, stage};
use samite_fabric::{Fabric, Mask};
use samite_stage::Settings;
use samite_testkit::{check, full_name, same};

/// What one stage asked is not answered to another one, while both are there and when one has gone.
#[test]
fn two_stages_share_a_fabric() {
    let play = Play::of(1, Mask::default());
    let body = |fabric: &Fabric, _| {
        let (one, other) = (
            stage(fabric, Settings::default())?,
            stage(fabric, Settings::default())?,
        );
        let mut field = one.write("field").as_rank("solver", 0, 1).open()?;
        let mut reader = other.read("field").as_rank("analysis", 0, 1).open()?;
        for number in 0..3 {
            same!(write(&mut field)?, number);
            let step = next(&mut reader)?;
            same!(step.number(), number);
            check_step(&step)?;
        }
        drop((one, other, reader));
        let third = stage(fabric, Settings::default())?;
        let mut reader = third.read("field").as_rank("analysis", 0, 1).open()?;
        same!(write(&mut field)?, 3);
        let step = next(&mut reader)?;
        same!(step.number(), 3);
        check_step(&step)?;
        drop(step);
        field.close()?;
        check!(reader.next_step()?.is_none(), "a step too many");
        Ok(())
    };
    play.run(
        &full_name(module_path!(), "two_stages_share_a_fabric"),
        body,
        |cluster| cluster.all_end(),
    );
}
