//! Units that are lost during operations, and those that do not run the code.

use super::{KEY, SMALL, content, fill, serve, spread};
use crate::runs;
use samite_fabric::{Fabric, Mask, Match, PeerId, SegmentKey};
use samite_mobile::operation::{Below, END, Gather, Graph, Lists, Shards, Table, Tree, Way};
use samite_mobile::{Cause, Error, Mobile, Policy, Result, Rights, Trust};
use samite_testkit::{Cluster, Outcome, Who, check, pause, point, same, units};
use std::time::Duration;

/// Unit 1 has all data, and does not answer; then it dies.
fn owner_dies(name: &str, mask: Mask) {
    const WORDS: u64 = 1000;
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let mobile = Mobile::new(fabric)?;
        let members = fabric.job()?;
        serve(&mobile);
        if fabric.identity().unit == 1 {
            let keys = (0..2).map(|grant| {
                let segment = fabric.allocate(WORDS * 8)?;
                mobile.grant(grant, segment.bytes(), Rights::Write);
                fabric.send(members[0], KEY, &segment.key().to_bytes())?;
                Ok(segment)
            });
            let _segments = keys.collect::<Outcome<Vec<_>>>()?;
            fabric.barrier(&members)?; // Meanwhile it answers.
            pause("silent");
            mobile.serve(Duration::from_secs(60), || None::<()>)?;
            return Ok(());
        }
        let shards = (0..2).map(|grant| {
            let mut key = [0; 24];
            fabric.recv(Match::from(members[1], KEY), &mut key)?;
            let keys = [SegmentKey::from_bytes(&key)];
            Ok(Shards::new(&mobile, 1, grant, WORDS, &keys)?)
        });
        let shards = shards.collect::<Outcome<Vec<_>>>()?;
        let tree = Tree::build(&shards[0], 100, 4, &[(1, 2), (3, 4)])?;
        shards[0].put(50, &[END])?; // the head of a list without nodes
        let table = Table::new(&shards[0])?;
        let gather = Gather::new(&shards[0])?;
        let lists = Lists::new(&shards[0])?;
        let below = Below::new(&shards[0])?;
        let graph = Graph::new(&shards[0], &shards[1], 50)?;
        fabric.barrier(&members)?;
        let is_mapped = fabric.caps_to(members[1]).map;
        pause("ready");
        let ask = |way: Way, of: usize| match of {
            0 => table.chase(way, 5, 0).map(drop),
            1 => gather.gather(way, &[1, 2, 3]).map(drop),
            2 => lists.find(way, 50, 7).map(drop),
            3 => tree.get(way, 3).map(drop),
            4 => below.find(way, 0..WORDS, 9).map(drop),
            _ => graph.bfs(way, 0).map(drop),
        };
        let calls = [Way::Function, Way::Moved].map(|way| [0, 1, 2, 3, 4, 5].map(|of| (way, of)));
        let calls = calls.as_flattened();
        // One thread for each, so that all are under way when the unit dies.
        let ended = std::thread::scope(|scope| {
            let ask = &ask;
            let start = |(way, of)| scope.spawn(move || ask(way, of));
            let threads: Vec<_> = calls.iter().copied().map(start).collect();
            point("asking");
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.collect::<std::thread::Result<Vec<_>>>()
        });
        let ended = ended.expect("no operation panics");
        let is_lost = |ended: &Result<()>| match ended {
            Err(Error::Failed(failure)) => failure.cause == Cause::Lost,
            Err(Error::Fabric(error)) => {
                matches!(error, samite_fabric::Error::PeerLost { .. })
            }
            _ => false,
        };
        let later = calls.iter().map(|(way, of)| ask(*way, *of));
        for ended in ended.into_iter().chain(later) {
            check!(is_lost(&ended), "{ended:?}");
        }
        // Memory that is mapped here outlives its owner.
        for ended in (0..6).map(|of| ask(Way::Gets, of)) {
            match is_mapped {
                true => check!(ended.is_ok(), "{ended:?}"),
                false => check!(is_lost(&ended), "{ended:?}"),
            }
        }
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "silent");
            cluster.wait_point(Who::Unit(0), "ready");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "asking");
            cluster.kill(Who::Unit(1));
            cluster.all_end();
        });
}

on_processes!(an_owner_dies_during_operations, owner_dies);

/// More operations than it takes until one way is preferred.
const MOST_TRIES: u32 = 200;

/// If a unit runs no moved code, and does not have the function either, operations read its words
/// by gets.
fn ways_are_refused(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    if unit == 1 {
        mobile.set_policy(Policy {
            trust: Trust::Nothing,
            ..Policy::default()
        });
    } else {
        serve(&mobile);
    }
    let (_segment, shards) = spread(&mobile, 0, SMALL)?;
    fabric.barrier(&members)?;
    if let Some(shards) = shards {
        fill(&shards, content)?;
        let gather = Gather::new(&shards)?;
        let addresses: Vec<u64> = (0..2 * SMALL).step_by(7).collect();
        let expected: Vec<u64> = addresses.iter().map(|at| content(*at)).collect();
        for way in [Way::Function, Way::Moved] {
            match gather.gather(way, &addresses) {
                Err(Error::Failed(failure)) => same!(failure.cause, Cause::Refused),
                other => check!(false, "{way:?}: {other:?}"),
            }
        }
        // Each way is tried for as long as it becomes faster, up to a bound.
        let best = || gather.best(addresses.len() as u64);
        let mut gathers = 0;
        while best().is_none() {
            gathers += 1;
            check!(gathers <= MOST_TRIES, "no way was preferred");
            check!(gather.gather_auto(&addresses)? == expected);
        }
        same!(best(), Some(Way::Gets));
        check!(gather.gather_auto(&addresses)? == expected);
    }
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(refused_ways_are_left, runs(2, ways_are_refused));
