//! Ranks of a writer that do not fit together.

use crate::staged::{Play, stage};
use ndarray::Array2;
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::Fault;
use samite_stage::{Error, Settings};
use samite_testkit::{check, full_name, pause};

/// The ranks of a writer do not agree: whoever commits last hears of it, by the names of both.
#[test]
fn ranks_that_do_not_fit_together() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        let ones = Array2::<f64>::ones((4, 4));
        let mut overlap = stage.write("overlap").as_rank("solver", me, 2).open()?;
        let mut shapes = stage.write("shapes").as_rank("solver", me, 2).open()?;
        pause("open");
        let mut step = overlap.step()?;
        step.put("u", [8_u64, 4], [3 * u64::from(me), 0], ones.view())?;
        let first = step.commit();
        let mut step = shapes.step()?;
        step.put(
            "u",
            [8 + u64::from(me), 4],
            [4 * u64::from(me), 0],
            ones.view(),
        )?;
        let second = step.commit();
        match me {
            0 => check!(first.is_ok() && second.is_ok(), "{first:?} {second:?}"),
            _ => {
                let is_it = matches!(first, Err(Error::Fault(Fault::Overlap { .. })));
                check!(is_it, "{first:?}");
                let is_it = matches!(second, Err(Error::Fault(Fault::ShapeDiffers { .. })));
                check!(is_it, "{second:?}");
            }
        }
        pause("done");
        Ok(())
    };
    play.run(
        &full_name(module_path!(), "ranks_that_do_not_fit_together"),
        body,
        |cluster| {
            for who in [play.actor(0), play.actor(1)] {
                cluster.wait_point(who, "open");
                cluster.release(who);
                cluster.wait_point(who, "done");
            }
            cluster.release(play.actor(0));
            cluster.release(play.actor(1));
        },
    );
}
