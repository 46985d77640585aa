//! Breadth-first searches.

use super::{MAPPED, SMALL, fails, is_bad_address, serve, spread};
use crate::{failure, runs};
use samite_fabric::Fabric;
use samite_mobile::operation::{Graph, Reached, Shards, Way};
use samite_mobile::{Cause, Error, Function, Mobile};
use samite_testkit::{Outcome, check, same};
use std::collections::VecDeque;

/// The levels of all vertices, in local memory.
fn levels_of(neighbours: &[Vec<u64>], source: u64) -> Vec<Option<u32>> {
    let mut levels = vec![None; neighbours.len()];
    levels[source as usize] = Some(0);
    let mut queue = VecDeque::from([source]);
    while let Some(vertex) = queue.pop_front() {
        let next = levels[vertex as usize].map(|level: u32| level + 1);
        for neighbour in &neighbours[vertex as usize] {
            if levels[*neighbour as usize].is_none() {
                levels[*neighbour as usize] = next;
                queue.push_back(*neighbour);
            }
        }
    }
    levels
}

fn graphs(fabric: &Fabric, _: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    serve(&mobile);
    let mut random = fastrand::Rng::with_seed(4);
    // The large one has a vertex with more edges than a call looks at and a reply names, and fills
    // several payloads; both have vertices that are not reached.
    for (vertices, hub, words) in [(40_003, 39_000, MAPPED), (500, 3, SMALL)] {
        let mut neighbours: Vec<Vec<u64>> = (0..vertices)
            .map(|_| {
                (0..random.u64(0..3))
                    .map(|_| random.u64(..vertices))
                    .collect()
            })
            .collect();
        neighbours[5] = (0..hub).map(|at| (at * 7 + 1) % vertices).collect();
        let (segment, links) = spread(&mobile, 0, words)?;
        let (_marks, marks) = spread(&mobile, 1, words)?;
        let unit = u64::from(fabric.identity().unit);
        let part = Graph::part(vertices, 3, unit, |v| {
            neighbours[v as usize].iter().copied()
        });
        let bytes: Vec<u8> = part.iter().flat_map(|word| word.to_le_bytes()).collect();
        segment.bytes().write(0, &bytes);
        fabric.barrier(&members)?;
        if let (Some(links), Some(marks)) = (links, marks) {
            let graph = Graph::new(&links, &marks, vertices)?;
            for source in [0, 5, vertices - 1] {
                let expected = levels_of(&neighbours, source);
                for way in Way::ALL {
                    let reached = graph.bfs(way, source)?;
                    check!(graph.levels(&reached)? == expected, "{way:?} from {source}");
                    let levels = expected.iter().flatten().max().map_or(0, |most| most + 1);
                    let visited = expected.iter().flatten().count() as u64;
                    let run = reached.run;
                    same!(
                        reached,
                        Reached {
                            run,
                            visited,
                            levels
                        }
                    );
                }
            }
            let expected = levels_of(&neighbours, 5);
            // The small one so often that each way was tried, and one was chosen.
            let times = if words == SMALL { 14 } else { 1 };
            for _ in 0..times {
                let reached = graph.bfs_auto(5)?;
                check!(graph.levels(&reached)? == expected);
                same!(reached.visited, expected.iter().flatten().count() as u64);
            }
            wrong_graphs(&graph, &links, &marks)?;
        }
        fabric.barrier(&members)?;
    }
    Ok(())
}

/// Wrong uses of a graph, and wrong data in it.
fn wrong_graphs(graph: &Graph, links: &Shards, marks: &Shards) -> Outcome {
    let vertices = graph.vertices();
    for way in Way::ALL {
        check!(is_bad_address(graph.bfs(way, vertices)), "{way:?}");
    }
    let too_many = Graph::new(links, marks, 3 * marks.words());
    check!(matches!(too_many, Err(Error::BadLayout(_))));
    // A newer run than any of ours has visited the source.
    marks.put(1, &[(u64::MAX >> 32) << 32])?;
    check!(matches!(graph.bfs(Way::Gets, 0), Err(Error::Damaged(_))));
    for way in [Way::Function, Way::Moved] {
        fails(graph.bfs(way, 0), "a newer run")?;
    }
    marks.put(1, &[0])?;
    // A row of edges that begins at its place and leads outside.
    let each = vertices.div_ceil(3);
    links.put(0, &[0, 1])?;
    links.put(each + 1, &[u64::MAX])?;
    check!(is_bad_address(graph.bfs(Way::Gets, 0)), "an edge");
    for way in [Way::Function, Way::Moved] {
        fails(graph.bfs(way, 0), "an address outside")?;
    }
    // A row that does not end in the segment.
    links.put(0, &[u64::MAX - 1, u64::MAX])?;
    check!(matches!(graph.bfs(Way::Gets, 0), Err(Error::Damaged(_))));
    for way in [Way::Function, Way::Moved] {
        let failed = failure(graph.bfs(way, 0).map(|_| Vec::new()))?;
        check!(
            matches!(failed.cause, Cause::Failed | Cause::Grant),
            "{failed}"
        );
    }
    Ok(())
}

on_processes!(graphs_are_searched, runs(3, graphs));

/// A unit that answers without having done anything, or names vertices for ever, ends a search.
fn idle_units(fabric: &Fabric, unit: u32) -> Outcome {
    const VERTICES: u64 = 100;
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    serve(&mobile);
    let (segment, links) = spread(&mobile, 0, SMALL)?;
    let (_marks, marks) = spread(&mobile, 1, SMALL)?;
    let part = Graph::part(VERTICES, 3, unit.into(), |_| []);
    let bytes: Vec<u8> = part.iter().flat_map(|word| word.to_le_bytes()).collect();
    segment.bytes().write(0, &bytes);
    for answer in [[0, 0, 0, 7], [1, 0, 1, 99]] {
        if unit == 2 {
            let bytes = answer.map(u64::to_le_bytes).concat();
            let idle = Function::new(move |context, _| context.reply(&bytes));
            mobile.define("samite.graph", idle);
        }
        fabric.barrier(&members)?;
        if let (Some(links), Some(marks)) = (&links, &marks) {
            let graph = Graph::new(links, marks, VERTICES)?;
            let ended = graph.bfs(Way::Function, 99);
            check!(
                matches!(ended, Err(Error::Damaged(_))),
                "{answer:?}: {ended:?}"
            );
        }
        fabric.barrier(&members)?;
    }
    Ok(())
}

on_processes!(units_that_do_nothing_end_a_search, runs(3, idle_units));
