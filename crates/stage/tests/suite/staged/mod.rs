//! What the tests of processes share: who is who, and values that say where they belong.
//!
//! Unit 0 is the coordinator, and keeps blocks as the agent of a node does; the next ones may be
//! staging servers; the others run the body of the test.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

use ndarray::{Array2, ArrayView2};
use samite_fabric::{Fabric, Mask};
use samite_stage::service::{BlockStoreService, Capacity, Staging};
use samite_stage::{Configuration, Reader, Stage, StepReader};
use samite_testkit::{Cluster, Outcome, Unit, Units, check, units};

pub(crate) const MEMORY: u64 = 64 << 20;

/// The processes of a test.
#[derive(Clone, Copy)]
pub(crate) struct Play {
    pub(crate) servers: u32,
    pub(crate) actors: u32,
    pub(crate) mask: Mask,
    /// Bytes that each block store may use.
    pub(crate) memory: u64,
    pub(crate) disk: u64,
}

impl Play {
    pub(crate) fn of(actors: u32, mask: Mask) -> Play {
        Play {
            servers: 0,
            actors,
            mask,
            memory: MEMORY,
            disk: 0,
        }
    }

    pub(crate) fn capacity(&self) -> Capacity {
        Capacity {
            memory: self.memory,
            disk: self.disk,
            folder: std::env::temp_dir(),
        }
    }

    pub(crate) fn units(&self) -> Units {
        units(1 + self.servers + self.actors).mask(self.mask)
    }

    /// Unit number of an actor.
    pub(crate) fn actor(&self, number: u32) -> samite_testkit::Who {
        samite_testkit::Who::Unit(1 + self.servers + number)
    }

    pub(crate) fn run(
        self,
        name: &str,
        body: impl Fn(&Fabric, u32) -> Outcome,
        orchestrator: impl FnOnce(&mut Cluster),
    ) {
        let joined = |unit: &Unit, me| body(&unit.join()?, me);
        self.run_units(self.units(), name, joined, orchestrator);
    }

    /// As `run`, for actors that join by themselves, and with other units than usual.
    pub(crate) fn run_units(
        self,
        units: Units,
        name: &str,
        body: impl Fn(&Unit, u32) -> Outcome,
        orchestrator: impl FnOnce(&mut Cluster),
    ) {
        let part = |unit: &Unit| match unit.rank.checked_sub(1) {
            None => self.be_coordinator(unit),
            Some(number) if number < self.servers => {
                let mut identity = unit.identity();
                identity.program = "servers".into();
                (identity.rank, identity.size) = (number, self.servers);
                let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
                let mut service = BlockStoreService::join(&fabric, self.capacity())?;
                let mut seen = false;
                Ok(service
                    .run(|fabric| are_there(fabric, self.servers + self.actors, &mut seen))?)
            }
            Some(number) => body(unit, number - self.servers),
        };
        units.orchestrate_bare(name, part, orchestrator);
    }

    fn be_coordinator(&self, unit: &Unit) -> Outcome {
        let fabric = Fabric::join(
            &unit.domain,
            samite_fabric::agent::identity(),
            unit.config.clone(),
        )?;
        let mut service = Staging::new(&fabric, self.capacity());
        samite_testkit::point("coordinator");
        let mut seen = false;
        service.run(|fabric| are_there(fabric, self.servers + self.actors, &mut seen))?;
        Ok(())
    }
}

/// Whether actors are there, or the last of them has not come yet: it comes in every test, whoever
/// else is killed.
fn are_there(fabric: &Fabric, last: u32, seen: &mut bool) -> bool {
    let peers = fabric.peers();
    let mut actors = peers
        .iter()
        .filter(|info| info.identity.program == "unit")
        .map(|info| info.identity.unit)
        .peekable();
    let none = actors.peek().is_none();
    *seen |= actors.any(|unit| unit == last);
    !none || !*seen
}

pub(crate) fn value(step: u64, y: u64, x: u64) -> f64 {
    (step * 1_000_003 + y * 1009 + x) as f64
}

/// The rows `rows` of an array that is `columns` wide.
pub(crate) fn rows(step: u64, rows: std::ops::Range<u64>, columns: u64) -> Array2<f64> {
    let shape = ((rows.end - rows.start) as usize, columns as usize);
    Array2::from_shape_fn(shape, |(y, x)| value(step, rows.start + y as u64, x as u64))
}

pub(crate) fn is_right(step: u64, (y0, x0): (u64, u64), array: ArrayView2<'_, f64>) -> bool {
    array
        .indexed_iter()
        .all(|((y, x), found)| *found == value(step, y0 + y as u64, x0 + x as u64))
}

pub(crate) fn stage(
    fabric: &Fabric,
    settings: samite_stage::Settings,
) -> samite_stage::Result<Stage> {
    Stage::join_with(fabric, Configuration::of(settings))
}

/// The next step, which must be there.
pub(crate) fn next(reader: &mut Reader) -> Outcome<StepReader> {
    let step = reader.next_step()?;
    check!(step.is_some(), "the stream ended: {:?}", reader.end());
    Ok(step.expect("just looked"))
}
