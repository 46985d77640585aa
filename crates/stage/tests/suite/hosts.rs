//! Streams between two hosts, with the services of their agents: blocks stay where they are
//! written, and end with their node.

use ndarray::Array2;
use samite_fabric::{Fabric, Match, PeerId, agent};
use samite_stage::protocol::EndOfStream;
use samite_stage::service::STARTER;
use samite_stage::{Error, Stage};
use samite_testkit::{Cluster, Outcome, Who, check, full_name, pause, require, same, units};

const SHAPE: [u64; 2] = [60, 50];
const STEPS: u64 = 4;
/// More than a frame.
const TAG: u64 = 5;

fn value(step: u64, y: usize, x: usize) -> f64 {
    (step * 1_000_000) as f64 + (y * 1000 + x) as f64
}

fn array(step: u64) -> Array2<f64> {
    let [rows, columns] = SHAPE.map(|extent| extent as usize);
    Array2::from_shape_fn((rows, columns), |(y, x)| value(step, y, x))
}

fn write(fabric: &Fabric, steps: u64, until: impl FnOnce()) -> Outcome {
    let stage = Stage::join(fabric)?;
    let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
    fabric.barrier(&fabric.job()?)?; // The readers have opened it, too.
    for number in 0..steps {
        let mut step = field.step()?;
        step.put("u", SHAPE, [0_u64, 0], array(number).view())?;
        step.commit()?;
    }
    until();
    Ok(field.close()?)
}

fn has_ucx(test: &str) -> bool {
    require(
        test,
        samite_fabric::has_ucx(),
        "install libucx0: ci/packages.txt",
    )
}

/// Unit 1 writes on the second host. Its reader there finds the steps in place, and that of the
/// first host, where the coordinator is, gets them from there.
fn stays(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let unit = fabric.identity().unit;
    if unit == 1 {
        return write(fabric, STEPS, || ());
    }
    let is_near = unit % 2 == 1;
    let stage = Stage::join(fabric)?;
    let reader = match is_near {
        true => stage.read("field").as_rank("near", 0, 1),
        false => stage.read("field").as_rank("far", unit / 2, 2),
    };
    let mut reader = reader.open()?;
    fabric.barrier(members)?;
    for number in 0..STEPS {
        let Some(step) = reader.next_step()? else {
            check!(false, "the stream ended before step {number}");
            break;
        };
        same!(step.view::<f64>("u", ..)?.is_some(), is_near);
        let all: Array2<f64> = step.get("u", ..)?;
        check!(all == array(number), "{all}");
        let part: Array2<f64> = step.get("u", [10_u64..33, 7..9])?;
        same!(part[[0, 0]], value(number, 10, 7));
    }
    check!(reader.next_step()?.is_none());
    same!(reader.end(), Some(EndOfStream::Closed));
    Ok(())
}

#[test]
fn a_block_stays_on_the_host_where_it_was_written() {
    let name = full_name(
        module_path!(),
        "a_block_stays_on_the_host_where_it_was_written",
    );
    if has_ucx(&name) {
        units(4).hosts(2).services(vec![STARTER]).run(&name, stays);
    }
}

/// The second host is lost with what was written there: who reads it is told so, and the first host
/// goes on.
#[test]
fn blocks_end_with_their_host() {
    let name = full_name(module_path!(), "blocks_end_with_their_host");
    if !has_ucx(&name) {
        return;
    }
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        match fabric.identity().unit {
            1 => write(fabric, 1, || {
                pause("written");
            })?,
            0 => {
                let stage = Stage::join(fabric)?;
                let mut reader = stage.read("field").as_rank("far", 0, 1).open()?;
                fabric.barrier(members)?;
                let Some(step) = reader.next_step()? else {
                    check!(false, "no step");
                    return Ok(());
                };
                pause("reads");
                while fabric.lost(members[1]).is_none() {
                    fabric.progress();
                }
                let ended = step.get::<f64, ndarray::Ix2>("u", ..);
                check!(ended.is_err(), "{ended:?}");
                drop(step);
                // Another stream of this host works.
                let mut other = stage.write("other").as_rank("here", 0, 1).open()?;
                let mut step = other.step()?;
                step.put("u", SHAPE, [0_u64, 0], array(7).view())?;
                step.commit()?;
                let mut reader = stage.read("other").as_rank("far", 0, 1).open()?;
                let step = reader.next_step()?.ok_or(Error::NoCoordinator)?;
                let all: Array2<f64> = step.get("u", ..)?;
                check!(all == array(7), "{all}");
                drop(step);
                other.close()?;
                fabric.send(members[2], TAG, b"end")?;
            }
            2 => {
                fabric.barrier(members)?;
                fabric.recv_vec(Match::from(members[0], TAG))?;
            }
            _ => {
                fabric.barrier(members)?;
                pause("is killed");
            }
        }
        Ok(())
    };
    let orchestrate = |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(1), "written");
        cluster.wait_point(Who::Unit(0), "reads");
        cluster.kill(Who::AgentOf(1));
        cluster.kill(Who::Unit(1));
        cluster.kill(Who::Unit(3));
        cluster.release(Who::Unit(0));
        cluster.all_end();
    };
    let units = units(4).hosts(2).services(vec![STARTER]);
    units.orchestrate(&name, body, orchestrate);
}

/// Returns the bytes that the block store of this node has in memory.
fn stored(fabric: &Fabric) -> Outcome<u64> {
    let services = agent::services(fabric, fabric.deadline())?;
    let owned = services.iter().flat_map(|service| &service.owns);
    let bytes = owned.filter(|owned| owned.what == "shared memory");
    Ok(bytes.map(|owned| owned.amount).sum())
}

/// Nobody would ever free what the second host keeps for a coordinator that is lost.
#[test]
fn blocks_of_a_lost_coordinator_are_freed() {
    let name = full_name(module_path!(), "blocks_of_a_lost_coordinator_are_freed");
    if !has_ucx(&name) {
        return;
    }
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        match fabric.identity().unit {
            1 => {
                let stage = Stage::join(fabric)?;
                let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
                fabric.barrier(members)?;
                let mut step = field.step()?;
                step.put("u", SHAPE, [0_u64, 0], array(0).view())?;
                step.commit()?;
                check!(stored(fabric)? > 0);
                pause("written");
                while stored(fabric)? > 0 {
                    fabric.progress();
                }
                fabric.send(members[3], TAG, b"freed")?;
            }
            3 => {
                let stage = Stage::join(fabric)?;
                let _reader = stage.read("field").as_rank("near", 0, 1).open()?;
                fabric.barrier(members)?;
                fabric.recv_vec(Match::from(members[1], TAG))?;
            }
            _ => {
                fabric.barrier(members)?;
                pause("is killed");
            }
        }
        Ok(())
    };
    let orchestrate = |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(1), "written");
        cluster.kill(Who::Agent);
        cluster.kill(Who::Unit(0));
        cluster.kill(Who::Unit(2));
        cluster.release(Who::Unit(1));
        cluster.all_end();
    };
    let units = units(4).hosts(2).services(vec![STARTER]);
    units.orchestrate(&name, body, orchestrate);
}
