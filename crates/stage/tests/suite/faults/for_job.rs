//! A staging server of a workflow serves until the other units of its job have come and gone.

use crate::staged::Play;
use samite_fabric::{Error, Fabric, Mask};
use samite_stage::service::{BlockStoreService, Capacity};
use samite_testkit::{Outcome, Unit, check, full_name, matches_or_fail, pause, point};
use std::time::Duration;

/// No service has this handler: whoever lives says so.
const NO_HANDLER: u16 = 999;

fn serve(unit: &Unit) -> Outcome {
    let mut identity = unit.identity();
    identity.program = "servers".into();
    (identity.rank, identity.size) = (0, 1);
    let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
    let mut service = BlockStoreService::join(&fabric, Capacity::of_memory(16 << 20))?;
    point("serving");
    Ok(service.run_for_job()?)
}

/// Of the other units one ends without joining, one leaves before the last one comes. The server is
/// there for the last one, and ends after it.
#[test]
fn a_server_is_there_for_the_last_unit_of_its_job() {
    let name = full_name(
        module_path!(),
        "a_server_is_there_for_the_last_unit_of_its_job",
    );
    let play = Play::of(3, Mask::default());
    let body = |unit: &Unit, me: u32| -> Outcome {
        if me == 0 {
            return serve(unit);
        }
        pause("born");
        let fabric = unit.join()?;
        pause("joined");
        if me == 1 {
            return Ok(());
        }
        for _ in 0..10 {
            let peers = fabric.peers();
            let server = peers.iter().find(|info| info.identity.program == "servers");
            check!(server.is_some(), "the server has left: {peers:?}");
            let server = server.map_or(fabric.me(), |info| info.peer);
            let answer = fabric.request(server, NO_HANDLER, &[])?.wait();
            matches_or_fail!(answer, Err(Error::NoHandler { .. }));
        }
        pause("served");
        Ok(())
    };
    play.run_units(play.units(), &name, body, |cluster| {
        let [server, first, last] = [0, 1, 2].map(|actor| play.actor(actor));
        cluster.wait_point(server, "serving");
        // The process of this unit is the one that coordinates here, as a peer of no job.
        let (domain, end) = (
            cluster.domain().to_owned(),
            ("unit.0", "ended with exit code 0"),
        );
        samite_fabric::agent::unit_ended(&domain, &domain, 0, end, Duration::from_secs(30))
            .expect("the agent is there");
        cluster.wait_point(first, "born");
        cluster.release(first);
        cluster.wait_point(first, "joined");
        cluster.release(first);
        cluster.wait_gone(first);
        // The coordinator and the server, which have both heard of that by then.
        cluster.wait_members(2);
        cluster.wait_asleep(server);
        cluster.wait_point(last, "born");
        cluster.release(last);
        cluster.wait_point(last, "joined");
        cluster.wait_asleep(server);
        cluster.release(last);
        cluster.wait_point(last, "served");
        assert!(
            cluster
                .lines(server)
                .iter()
                .all(|line| !line.starts_with("@done"))
        );
        cluster.release(last);
        cluster.wait_gone(server);
        assert!(
            cluster
                .lines(server)
                .iter()
                .any(|line| line.starts_with("@done"))
        );
    });
}
