//! A staging server of a workflow serves until the other units of its job have come and gone.

use crate::staged::Play;
use samite_fabric::{Error, Fabric, Mask};
use samite_stage::service::{BlockStore, Room};
use samite_testkit::{Outcome, Unit, check, full_name, matches_or_fail, pause, point};
use std::time::Duration;

/// No service has this handler: whoever lives says so.
const NO_HANDLER: u16 = 999;

fn serve(unit: &Unit) -> Outcome {
    let mut identity = unit.identity();
    identity.program = "servers".into();
    (identity.rank, identity.size) = (0, 1);
    let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
    let mut service = BlockStore::join(&fabric, Room::of_memory(16 << 20))?;
    point("serving");
    Ok(service.run_for_job()?)
}

/// Of the other units one ends without joining, one leaves before the last one comes. The server is there for the last one,
/// and ends after it.
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
    play.run_units(play.units(), &name, body, |cast| {
        let [server, first, last] = [0, 1, 2].map(|actor| play.actor(actor));
        cast.wait_point(server, "serving");
        // The process of this unit is the one that coordinates here, as a peer of no job.
        let (domain, end) = (
            cast.domain().to_owned(),
            ("unit.0", "ended with exit code 0"),
        );
        samite_fabric::agent::unit_ended(&domain, &domain, 0, end, Duration::from_secs(30))
            .expect("the agent is there");
        cast.wait_point(first, "born");
        cast.release(first);
        cast.wait_point(first, "joined");
        cast.release(first);
        cast.wait_gone(first);
        // The coordinator and the server, which have both heard of that by then.
        cast.wait_members(2);
        cast.wait_asleep(server);
        cast.wait_point(last, "born");
        cast.release(last);
        cast.wait_point(last, "joined");
        cast.wait_asleep(server);
        cast.release(last);
        cast.wait_point(last, "served");
        assert!(
            cast.lines(server)
                .iter()
                .all(|line| !line.starts_with("@done"))
        );
        cast.release(last);
        cast.wait_gone(server);
        assert!(
            cast.lines(server)
                .iter()
                .any(|line| line.starts_with("@done"))
        );
    });
}
