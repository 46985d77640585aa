//! Units that only serve the other units of their job.

use samite_fabric::agent::Host;
use samite_fabric::{Error, Fabric, Mask, PeerId};
use samite_testkit::{
    Cluster, MESSAGES_ONLY, Outcome, TWO_NODES, Who, full_name, matches_or_fail, pause, programs,
};

/// No service has this handler: whoever lives says so.
const NO_HANDLER: u16 = 999;

/// The units 0 to 2 serve, of two programs; unit 3 does something.
fn body(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    if fabric.identity().program != "client" {
        // They begin in any order, also after others have left nobody to serve.
        if fabric.identity().unit == 2 {
            pause("late");
        }
        return Ok(Host::default().run_for_job(fabric, &mut [])?);
    }
    pause("there");
    for server in &members[..2] {
        let answer = fabric.request(*server, NO_HANDLER, &[])?.wait();
        matches_or_fail!(answer, Err(Error::NoHandler { .. }));
    }
    pause("served");
    Ok(())
}

fn end_together(name: &str, mask: Mask) {
    let units = programs(&[("stores", 2), ("chunks", 1), ("client", 1)]).mask(mask);
    units.orchestrate(name, body, |cluster: &mut Cluster| {
        let client = Who::Unit(3);
        cluster.wait_point(client, "there");
        for server in [0, 1] {
            cluster.wait_asleep(Who::Unit(server));
        }
        cluster.release(client);
        cluster.wait_point(client, "served");
        cluster.release(client);
        cluster.wait_gone(client);
        // Two have nobody to serve but the third, which may be no server.
        for server in [0, 1] {
            cluster.wait_asleep(Who::Unit(server));
            let said = cluster.lines(Who::Unit(server));
            assert!(said.iter().all(|line| !line.starts_with("@done")));
        }
        cluster.wait_point(Who::Unit(2), "late");
        cluster.release(Who::Unit(2));
        cluster.all_end();
    });
}

#[test]
fn servers_of_several_programs_end_together() {
    let name = full_name(module_path!(), "servers_of_several_programs_end_together");
    end_together(&name, Mask::default());
}

#[test]
fn they_do_by_messages() {
    let name = full_name(module_path!(), "they_do_by_messages");
    end_together(&name, MESSAGES_ONLY);
}

#[test]
fn they_do_on_two_nodes() {
    let name = full_name(module_path!(), "they_do_on_two_nodes");
    end_together(&name, TWO_NODES);
}
