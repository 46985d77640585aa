//! Frames of a liar straight into the engine of an honest unit, whatever it is doing: no network
//! between them, so that a suite has time for many.

use crate::program::ECHO;
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Atomic, Fabric, Match, PeerId, SegmentKey, Width, WordUpdate, testing};
use samite_testkit::fuzz::{self, Rng};
use samite_testkit::hostile::Liar;
use samite_testkit::pattern::pattern;
use samite_testkit::{Failed, Outcome};
use std::time::Duration;

const LIAR: PeerId = PeerId(1);
const BYTES: u64 = 64 << 10;

/// What one frame may make its receiver allocate, in bytes: what it offers, in pieces, beside the
/// frame itself.
const MOST: usize = 6 * BYTES as usize;

/// Everything that a unit can have in flight to a peer, one thing at a time, and unanswered.
fn begin(fabric: &Fabric, remote: SegmentKey, random: &mut Rng) -> Outcome {
    let tag = random.u64(..4);
    match random.u32(..14) {
        0 => drop(fabric.isend(LIAR, tag, pattern(1, 20))?),
        1 => drop(fabric.isend(LIAR, tag, pattern(1, 30_000))?),
        2 => drop(fabric.irecv(Match::from(LIAR, tag), vec![0; 40])?),
        3 => drop(fabric.irecv(Match::any(tag), vec![0; 30_000])?),
        4 => drop(fabric.request(LIAR, ECHO, &pattern(2, 30))?),
        5 => drop(fabric.request(LIAR, ECHO, &pattern(2, 9000))?),
        6 => fabric.signal(LIAR, tag)?,
        7 => drop(fabric.attach(remote)?.put_nb(16, &pattern(3, 5000))?),
        8 => drop(fabric.attach(remote)?.get_nb(8, 6000)?),
        9 => drop(
            fabric
                .attach(remote)?
                .atomic_nb(8, Atomic::Add, Width::W64, 1, 0)?,
        ),
        10 => {
            let updates: [_; 3] = std::array::from_fn(|offset| WordUpdate {
                offset: offset as u64 * 8,
                value: 1,
            });
            drop(
                fabric
                    .attach(remote)?
                    .update_batch(Atomic::Add, Width::W64, &updates)?,
            );
        }
        11 => drop(fabric.attach(remote)?.get_batch(8, &[0, 8, 64])?),
        // What anybody may take that has come.
        12 => drop(fabric.irecv(Match::any(tag), vec![0; 40])?.has_ended()),
        _ => {
            fabric.set_deadline(Duration::ZERO);
            drop(fabric.recv_vec(Match::from(LIAR, tag)));
            drop(fabric.recv_view(Match::from(LIAR, tag)));
            fabric.set_deadline(Duration::from_millis(10));
        }
    }
    Ok(())
}

fn listen(fabric: &Fabric, seed: u64, lies: u32) -> Outcome {
    let mut random = Rng::with_seed(seed);
    let liar = Liar::new(seed, 0);
    testing::tamper(fabric, Box::new(liar.clone()));
    fabric.on(ECHO, |_, bytes| Some(bytes.to_vec()));
    let open = fabric.allocate(BYTES)?;
    let private = fabric.register(vec![0u64; BYTES as usize / 8])?;
    fabric.set_deadline(Duration::from_millis(10));
    let mut learn = |key: SegmentKey| {
        // So that the liar has words that mean something here.
        let key = SegmentKey { peer: LIAR, ..key };
        for _ in 0..20 {
            let _ = begin(fabric, key, &mut random);
        }
    };
    learn(open.key());
    learn(private.key());
    let remote = SegmentKey {
        peer: LIAR,
        ..open.key()
    };
    for _ in 0..lies {
        if fabric.lost(LIAR).is_some() {
            testing::live_again(fabric, LIAR);
        }
        let _ = begin(fabric, remote, &mut random);
        for _ in 0..random.u32(1..6) {
            let lie = liar.lie();
            let before = crate::HEAP.stats().bytes_allocated;
            testing::receive(fabric, LIAR, &lie);
            let cost = crate::HEAP.stats().bytes_allocated - before;
            let most = match lie.kind {
                // Memory for a message that is offered is reserved, as far as the machine could
                // have it.
                2 | 9 => usize::MAX >> 8,
                _ => MOST + 4 * (lie.inline.len() + lie.body.len()),
            };
            if cost > most {
                let what = format!("{cost} bytes for a frame of kind {}: {lie:?}", lie.kind);
                return Err(Failed::new(what));
            }
        }
        fabric.progress();
    }
    Ok(())
}

#[test]
fn no_frame_breaks_an_engine() {
    let _alone = crate::alone();
    const LIES: u32 = 400;
    fuzz::rounds("engine::no_frame_breaks_an_engine", 500, |seed, random| {
        let mut scenario = Scenario::new(seed, 2);
        scenario.config.eager_max = random.bool().then_some(random.u64(64..4096));
        let ended = scenario.run(|fabric| match fabric.me() {
            LIAR => Ok(()),
            _ => listen(fabric, seed, LIES),
        });
        if let Some(Err(Failed(why))) = ended.into_iter().next() {
            panic!("{why}");
        }
    });
}
