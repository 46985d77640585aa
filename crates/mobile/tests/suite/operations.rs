//! Operations on data that are spread over units: all ways have the result of a computation in
//! local memory, wrong addresses and lost units are typed errors.

use crate::{failure, patient, runs};
use samite_fabric::{Fabric, Mask, Match, PeerId, Segment, SegmentKey};
use samite_mobile::operation::{
    Below, END, Found, Gather, Graph, Lists, Reached, Shards, Table, Tree, Way,
};
use samite_mobile::{Cause, Error, Function, Limits, Mobile, Result, Rights};
use samite_testkit::{Cluster, Outcome, Who, check, pause, point, same, units};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Words of each unit that are mapped into the memory of kernels, and those that are not.
const MAPPED: u64 = 1 << 18;
const SMALL: u64 = 3001;
/// The tag of keys.
const KEY: u64 = 3;

/// Gives each unit words under a number. At unit 0, returns what it knows of those of all units.
fn spread(mobile: &Mobile, grant: usize, words: u64) -> Outcome<(Segment, Option<Shards>)> {
    let fabric = mobile.fabric();
    let members = fabric.job()?;
    let segment = fabric.allocate(words * 8)?;
    mobile.grant(grant, segment.bytes(), Rights::Write);
    fabric.send(members[0], KEY, &segment.key().to_bytes())?;
    if fabric.identity().unit > 0 {
        return Ok((segment, None));
    }
    let keys = members.iter().map(|member| {
        let mut key = [0; 24];
        fabric.recv(Match::from(*member, KEY), &mut key)?;
        Ok(SegmentKey::from_bytes(&key))
    });
    let keys = keys.collect::<Outcome<Vec<_>>>()?;
    let shards = Shards::new(mobile, 0, grant, words, &keys)?;
    Ok((segment, Some(shards)))
}

fn serve(mobile: &Mobile) {
    Table::serve(mobile);
    Gather::serve(mobile);
    Lists::serve(mobile);
    Tree::serve(mobile);
    Graph::serve(mobile);
    Below::serve(mobile);
}

/// Runs `ask` at unit 0, with shards whose words are mapped into the memory of kernels, and with
/// shards that are not. The others serve.
fn at_unit_0(fabric: &Fabric, ask: impl Fn(&Shards) -> Outcome) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    serve(&mobile);
    let (_mapped, one) = spread(&mobile, 0, MAPPED)?;
    let (_small, two) = spread(&mobile, 1, SMALL)?;
    fabric.barrier(&members)?;
    for shards in [one, two].iter().flatten() {
        ask(shards)?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

/// A word that depends on its address.
fn content(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Fills all words with what `of` returns for their addresses.
fn fill(shards: &Shards, of: impl Fn(u64) -> u64) -> Outcome {
    for unit in shards.units() {
        let begin = u64::from(unit) * shards.words();
        let words: Vec<u64> = (begin..begin + shards.words()).map(&of).collect();
        shards.put(begin, &words)?;
    }
    Ok(())
}

/// Checks that a kernel has failed on purpose, with a text.
fn fails<T>(ended: Result<T>, text: &str) -> Outcome {
    let failure = failure(ended.map(|_| Vec::new()))?;
    same!(failure.cause, Cause::Failed);
    check!(failure.to_string().contains(text), "{failure}");
    Ok(())
}

fn is_bad_address<T>(ended: Result<T>) -> bool {
    matches!(ended, Err(Error::BadAddress { .. }))
}

fn tables(fabric: &Fabric, _: u32) -> Outcome {
    at_unit_0(fabric, |shards| {
        let len = shards.len();
        let next = |address: u64| (address + 7919) % len;
        fill(shards, next)?;
        let table = Table::new(shards)?;
        for depth in [0, 1, 10, 300] {
            let start = content(depth) % len;
            let expected = (0..depth).fold(start, |at, _| next(at));
            for way in Way::ALL {
                same!(table.chase(way, depth, start)?, expected);
            }
            for _ in 0..13 {
                same!(table.chase_auto(depth, start)?, expected);
            }
            // Several at once, two of them from the same address on.
            let starts: Vec<u64> = [0, 1, 5, 1].iter().map(|by| (start + by) % len).collect();
            let end = |start: &u64| (0..depth).fold(*start, |at, _| next(at));
            let ends: Vec<u64> = starts.iter().map(end).collect();
            for way in Way::ALL {
                same!(table.chase_all(way, depth, &starts)?, ends);
            }
        }
        // So many steps at one unit that a call ends before.
        shards.put(9, &[9])?;
        for way in Way::ALL {
            same!(table.chase(way, 200_000, 9)?, 9);
        }
        shards.put(9, &[next(9)])?;
        // A call without hops says where to go on.
        let units = u64::from(fabric.identity().units);
        let (unit, depth) = (shards.units().end - 1, 10_000);
        let grant = u64::from(shards.words() <= SMALL);
        let head = [shards.words(), units << 32 | grant << 56, depth, len - 1];
        let payload: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        for hops in [0, 3] {
            let limits = Limits { hops, ..patient() };
            let call = (shards.mobile()).call_entry(unit, table.code(), 0, &payload, limits)?;
            let reply = call.wait()?;
            same!(reply.len(), 16);
            let address = u64::from_le_bytes(reply[..8].try_into()?);
            let left = u64::from_le_bytes(reply[8..].try_into()?);
            check!(left < depth, "{left}");
            same!(address, (left..depth).fold(len - 1, |at, _| next(at)));
        }
        // An address outside, at the beginning and on the way.
        shards.put(5, &[len])?;
        for way in Way::ALL {
            check!(is_bad_address(table.chase(way, 1, len)), "{way:?}");
            check!(is_bad_address(table.chase(way, 1, u64::MAX)), "{way:?}");
        }
        check!(is_bad_address(table.chase(Way::Gets, 2, 5)), "on the way");
        for way in [Way::Function, Way::Moved] {
            fails(table.chase(way, 2, 5), "an address outside of the shards")?;
        }
        Ok(())
    })
}

on_processes!(a_table_is_chased, runs(3, tables));

fn gathers(fabric: &Fabric, _: u32) -> Outcome {
    at_unit_0(fabric, |shards| {
        fill(shards, content)?;
        let gather = Gather::new(shards)?;
        let mut random = fastrand::Rng::with_seed(1);
        // The last is more than fits into one payload to each unit.
        for count in [0, 1, 100, 30_000] {
            let addresses: Vec<u64> = (0..count).map(|_| random.u64(..shards.len())).collect();
            let expected: Vec<u64> = addresses.iter().map(|at| content(*at)).collect();
            for way in Way::ALL {
                check!(
                    gather.gather(way, &addresses)? == expected,
                    "{way:?} {count}"
                );
            }
            for _ in 0..13 {
                check!(gather.gather_auto(&addresses)? == expected, "{count}");
            }
        }
        for way in Way::ALL {
            check!(
                is_bad_address(gather.gather(way, &[0, shards.len()])),
                "{way:?}"
            );
        }
        Ok(())
    })
}

on_processes!(words_are_gathered, runs(3, gathers));

fn lists(fabric: &Fabric, _: u32) -> Outcome {
    const BUCKETS: u64 = 16;
    at_unit_0(fabric, |shards| {
        let lists = Lists::new(shards)?;
        let mut random = fastrand::Rng::with_seed(2);
        // Heads are the first words of unit 1; nodes are anywhere behind that in all units.
        let head = |key: u64| shards.words() + key % BUCKETS;
        let mut firsts = vec![END; BUCKETS as usize];
        let mut places: Vec<u64> = (0..300)
            .map(|at| at % 3 * shards.words() + BUCKETS + at / 3 * Lists::NODE)
            .collect();
        random.shuffle(&mut places);
        let mut expected = BTreeMap::new();
        for address in places {
            let (key, value) = (random.u64(..1000), random.u64(..));
            let first = &mut firsts[(key % BUCKETS) as usize];
            shards.put(address, &[key, value, *first])?;
            *first = address;
            expected.insert(key, value);
        }
        shards.put(shards.words(), &firsts)?;
        for key in (0..1000).step_by(3).chain([u64::MAX]) {
            for way in Way::ALL {
                same!(
                    lists.find(way, head(key), key)?,
                    expected.get(&key).copied()
                );
            }
            same!(
                lists.find_auto(head(key), key)?,
                expected.get(&key).copied()
            );
        }
        let at = shards.len() - 7; // A head, and a node behind it.
        let both = |outcome: &dyn Fn(Way) -> Outcome| Way::ALL.into_iter().try_for_each(outcome);
        both(&|way| {
            check!(is_bad_address(lists.find(way, shards.len(), 1)), "{way:?}");
            Ok(())
        })?;
        // A list that leads outside of the shards, and one with a node that is not at one unit.
        for (to, text) in [
            (shards.len(), "an address outside"),
            (shards.len() - 1, "damaged"),
        ] {
            shards.put(at, &[at + 1, 0, 0, to])?;
            both(&|way| match way {
                Way::Gets => {
                    check!(is_bad_address(lists.find(way, at, 1)), "{to}");
                    Ok(())
                }
                _ => fails(lists.find(way, at, 1), text),
            })?;
        }
        if shards.words() > SMALL {
            return long_list(shards, &lists);
        }
        // A list that does not end.
        shards.put(at, &[at + 1, 0, 0, at + 1])?;
        both(&|way| match way {
            Way::Gets => {
                check!(matches!(lists.find(way, at, 1), Err(Error::Damaged(_))));
                Ok(())
            }
            _ => fails(lists.find(way, at, 1), "a damaged structure"),
        })
    })
}

/// A list at one unit that is so long that other calls get their turn.
fn long_list(shards: &Shards, lists: &Lists) -> Outcome {
    const NODES: u64 = 40_000;
    let begin = 2 * shards.words() + 1000;
    let node = |at: u64| [at, content(at), begin + 1 + (at + 1) * Lists::NODE];
    let words = [begin + 1].into_iter().chain((0..NODES).flat_map(node));
    let mut words: Vec<u64> = words.collect();
    *words.last_mut().expect("there are nodes") = END;
    shards.put(begin, &words)?;
    for way in [Way::Function, Way::Moved] {
        let last = NODES - 1;
        same!(lists.find(way, begin, last)?, Some(content(last)));
        same!(lists.find(way, begin, NODES)?, None);
    }
    Ok(())
}

on_processes!(lists_are_followed, runs(3, lists));

fn trees(fabric: &Fabric, _: u32) -> Outcome {
    at_unit_0(fabric, |shards| {
        let mut random = fastrand::Rng::with_seed(3);
        for (count, fan_out) in [(1, 2), (5, 2), (700, 3), (1000, 16), (1000, 200)] {
            let mut pairs = BTreeMap::new();
            while pairs.len() < count {
                pairs.insert(random.u64(..10_000), random.u64(..));
            }
            let sorted: Vec<(u64, u64)> = pairs.iter().map(|(key, value)| (*key, *value)).collect();
            let tree = Tree::build(shards, 10, fan_out, &sorted)?;
            let (first, last) = (sorted[0].0, sorted[count - 1].0);
            let keys = (0..60).map(|_| random.u64(..10_100));
            for key in keys.chain([0, first, last, last + 1, u64::MAX]) {
                let bound = pairs.range(key..).next().map(|(key, value)| (*key, *value));
                for way in Way::ALL {
                    same!(tree.get(way, key)?, pairs.get(&key).copied());
                    same!(tree.lower_bound(way, key)?, bound);
                }
                same!(tree.get_auto(key)?, pairs.get(&key).copied());
                same!(tree.lower_bound_auto(key)?, bound);
            }
            let again = Tree::open(shards, tree.root())?;
            same!(again.get(Way::Moved, last)?, pairs.get(&last).copied());
            // A root whose only child is outside of the shards, or is no node.
            for (child, text) in [(shards.len(), "outside"), (shards.words() - 1, "damaged")] {
                let mut root = vec![0; 2 * fan_out as usize + 2];
                (root[0], root[1 + fan_out as usize]) = (1 | 1 << 16 | fan_out << 32, child);
                shards.put(tree.root(), &root)?;
                check!(is_bad_address(tree.get(Way::Gets, 7)), "{child}");
                for way in [Way::Function, Way::Moved] {
                    fails(tree.get(way, 7), text)?;
                }
            }
        }
        let is_bad = |built: Result<Tree>| matches!(built, Err(Error::BadLayout(_)));
        check!(is_bad(Tree::build(shards, 0, 4, &[])));
        check!(is_bad(Tree::build(shards, 0, 1, &[(1, 1)])));
        check!(is_bad(Tree::build(shards, 0, 4, &[(2, 1), (2, 1)])));
        check!(is_bad(Tree::build(
            shards,
            shards.words() - 9,
            4,
            &[(1, 1)]
        )));
        check!(is_bad(Tree::build(shards, u64::MAX, 4, &[(1, 1)])));
        shards.put(0, &[0])?;
        check!(matches!(Tree::open(shards, 0), Err(Error::Damaged(_))));
        check!(is_bad_address(Tree::open(shards, shards.len())));
        Ok(())
    })
}

on_processes!(trees_are_searched, runs(3, trees));

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
            check!(ended.is_err(), "{answer:?}: {ended:?}");
        }
        fabric.barrier(&members)?;
    }
    Ok(())
}

on_processes!(units_that_do_nothing_end_a_search, runs(3, idle_units));

fn sums(fabric: &Fabric, _: u32) -> Outcome {
    const BOUND: u32 = 1 << 30;
    at_unit_0(fabric, |shards| {
        fill(shards, content)?;
        let below = Below::new(shards)?;
        let len = shards.len();
        for range in [
            0..0,
            5..6,
            3..40,
            7..len - 5,
            shards.words()..2 * shards.words(),
        ] {
            let mut expected = Found::default();
            for word in range.clone().map(content) {
                for half in [word as u32, (word >> 32) as u32] {
                    if half < BOUND {
                        expected.sum += u64::from(half);
                        expected.count += 1;
                    }
                }
            }
            for way in Way::ALL {
                same!(below.find(way, range.clone(), BOUND)?, expected);
            }
            same!(below.find_auto(range, BOUND)?, expected);
        }
        for way in Way::ALL {
            check!(
                is_bad_address(below.find(way, 5..len + 1, BOUND)),
                "{way:?}"
            );
        }
        Ok(())
    })
}

on_processes!(words_below_a_bound_are_summed, runs(3, sums));

/// Shards that do not exist.
fn wrong_shards(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let segment = fabric.allocate(800)?;
    let key = segment.key();
    let new = |first: u32, grant: usize, words: u64, keys: &[SegmentKey]| {
        Shards::new(&mobile, first, grant, words, keys)
    };
    let is_bad = |made: Result<Shards>| matches!(made, Err(Error::BadLayout(_)));
    check!(new(unit, 0, 100, &[key]).is_ok());
    check!(is_bad(new(unit, 0, 101, &[key])));
    check!(is_bad(new(unit, 0, 0, &[key])));
    check!(is_bad(new(unit, 0, 100, &[])));
    check!(is_bad(new(unit, 16, 100, &[key])));
    check!(is_bad(new(1 - unit, 0, 100, &[key])));
    check!(matches!(new(2, 0, 100, &[key]), Err(Error::NoUnit { .. })));
    check!(matches!(
        new(u32::MAX, 0, 1, &[key]),
        Err(Error::NoUnit { .. })
    ));
    fabric.barrier(&fabric.job()?)?;
    Ok(())
}

on_processes!(wrong_shards_are_refused, runs(2, wrong_shards));

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
            check!(ended.is_ok() || is_lost(&ended), "{ended:?}");
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

/// Each operation goes the way that it is told: gets call nothing, functions have nothing compiled,
/// and code that moves is compiled where the words are.
fn ways(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = Mobile::new(fabric)?;
    let members = fabric.job()?;
    serve(&mobile);
    let (_words, shards) = spread(&mobile, 0, SMALL)?;
    let (_marks, marks) = spread(&mobile, 1, SMALL)?;
    let asks = match (&shards, &marks) {
        (Some(shards), Some(marks)) => Some(Asks::new(shards, marks)?),
        _ => None,
    };
    for of in 0..Asks::KINDS {
        for way in Way::ALL {
            fabric.barrier(&members)?;
            let before = mobile.counters();
            fabric.barrier(&members)?;
            if let Some(asks) = &asks {
                asks.ask(way, of)?;
            }
            fabric.barrier(&members)?;
            let after = mobile.counters();
            let has_run = after.calls > before.calls;
            let compiled = after.compiled - before.compiled;
            if unit == 1 {
                let is_moved = u64::from(way == Way::Moved);
                check!(has_run == (way != Way::Gets), "{of} by {way:?}");
                check!(compiled == is_moved, "{of} by {way:?}: {compiled}");
            } else {
                check!(!has_run || way != Way::Gets, "{of} by {way:?}");
                check!(compiled == 0 || way == Way::Moved, "{of} by {way:?}");
            }
        }
    }
    fabric.barrier(&members)?;
    Ok(())
}

/// One operation of each kind, which needs words of unit 1.
struct Asks {
    at: u64,
    table: Table,
    gather: Gather,
    lists: Lists,
    tree: Tree,
    below: Below,
    graph: Graph,
}

impl Asks {
    const KINDS: usize = 6;

    fn new(shards: &Shards, marks: &Shards) -> Outcome<Asks> {
        let at = shards.words() + 1000;
        // A cycle of two words, and the head of a list of one node.
        shards.put(at, &[at + 1, at])?;
        shards.put(at + 10, &[at + 11, 7, 8, END])?;
        let vertices = 50;
        // The vertex 20 is at unit 1. Its row of edges is empty, like all others.
        Ok(Asks {
            at,
            table: Table::new(shards)?,
            gather: Gather::new(shards)?,
            lists: Lists::new(shards)?,
            tree: Tree::build(shards, 2000, 2, &[(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)])?,
            below: Below::new(shards)?,
            graph: Graph::new(shards, marks, vertices)?,
        })
    }

    fn ask(&self, way: Way, of: usize) -> Outcome {
        let at = self.at;
        match of {
            0 => same!(self.table.chase(way, 3, at)?, at + 1),
            1 => same!(self.gather.gather(way, &[at, at + 1])?, [at + 1, at]),
            2 => same!(self.lists.find(way, at + 10, 7)?, Some(8)),
            3 => {
                for key in [1, 3, 5, 7, 9] {
                    same!(self.tree.get(way, key)?, Some(key + 1));
                }
            }
            4 => same!(self.below.find(way, at..at + 2, 1 << 30)?.count, 4),
            _ => same!(self.graph.bfs(way, 20)?.visited, 1),
        }
        Ok(())
    }
}

on_processes!(operations_go_their_way, runs(3, ways));
