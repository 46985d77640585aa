//! Errors that no other test is about, as callers get them.

use crate::{runs, served};
use samite_dsm::{Dsm, Error, Policy, Version};
use samite_fabric::{Config, Fabric, Identity, Mask};
use samite_testkit::{Outcome, check, full_name, matches_or_fail, same, units};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(100);

/// The agent of this domain serves no chunks.
#[test]
fn a_domain_without_a_server_of_chunks() {
    let name = full_name(module_path!(), "a_domain_without_a_server_of_chunks");
    units(1).run(&name, |fabric: &Fabric, _: &[_]| {
        let joined = fabric.within(SHORT, || Dsm::join(fabric));
        matches_or_fail!(joined, Err(Error::NoServer));
        Ok(())
    });
}

/// A process that is a domain of its own is its only server.
#[test]
fn a_process_serves_its_chunks_once() {
    let fabric = Fabric::alone(Identity::by_hand("alone"), Config::default());
    let fabric = fabric.expect("a domain of its own");
    let first = Dsm::join(&fabric).expect("it is the first");
    let second = Dsm::join(&fabric);
    assert!(matches!(second, Err(Error::SecondDsm)), "{second:?}");
    let clone = first.clone();
    drop(first);
    assert!(matches!(Dsm::join(&fabric), Err(Error::SecondDsm)));
    drop(clone);
    Dsm::join(&fabric).expect("the first one has ended");
}

/// What a process may have at a time is limited; others are not concerned, and it may have the next
/// one when it has dropped one.
fn many(fabric: &Fabric, unit: u32) -> Outcome {
    let dsm = Dsm::join(fabric)?;
    let chunk = dsm.alloc::<u8>("followed", 10)?;
    let subscribe = || chunk.subscribe(Policy::Latest, Version(0));
    let ranks = u64::from(fabric.identity().units);
    if unit == 0 {
        let mut all = Vec::new();
        let most = loop {
            match subscribe() {
                Ok(subscription) => all.push(subscription),
                Err(Error::TooMany { most }) => break most,
                Err(error) => return Err(error.into()),
            }
            check!(all.len() <= 1 << 16, "there is no limit");
        };
        same!(all.len() as u64, most);
        dsm.barrier("full", ranks)?;
        dsm.barrier("tried", ranks)?;
        matches_or_fail!(subscribe(), Err(Error::TooMany { .. }));
        all.pop();
        drop(subscribe()?);
        return Ok(());
    }
    dsm.barrier("full", ranks)?;
    drop(subscribe()?);
    dsm.barrier("tried", ranks)?;
    Ok(())
}

everywhere!(a_process_has_too_many_subscriptions, runs(2, many));

/// Others wait for another number of processes under that name.
#[test]
fn a_meeting_of_another_number() {
    let name = full_name(module_path!(), "a_meeting_of_another_number");
    served(1, Mask::default()).run(&name, |fabric: &Fabric, _: &[_]| {
        let dsm = Dsm::join(fabric)?;
        let alone = fabric.within(SHORT, || dsm.barrier("noon", 2));
        matches_or_fail!(alone, Err(Error::Missing { .. }));
        matches_or_fail!(
            dsm.barrier("noon", 3),
            Err(Error::OtherCount { count: 2, .. })
        );
        matches_or_fail!(
            dsm.rendezvous("noon", 1, &[0_u8]),
            Err(Error::OtherCount { count: 2, .. })
        );
        Ok(())
    });
}
