//! What honest units do together, with every byte checked.

use crate::hostile::{FINISHED, HONEST, READER};
use samite::Fabric;
use samite::ndarray::Array2;
use samite::pgas::{Pgas, Sum};
use samite::stage::Stage;
use samite_fabric::{Match, PeerId};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Failed, Outcome, check, same};
use std::error::Error;
use std::time::Duration;

/// Among honest units nothing takes so long.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a unit waits for one that need not answer.
const BRIEF: Duration = Duration::from_millis(3);

/// Rows of a field that each writer writes.
const ROWS: usize = 10;
/// Steps of a stream.
const STEPS: u64 = 3;

struct Honest {
    fabric: Fabric,
    pgas: Pgas,
    members: Vec<PeerId>,
    me: u32,
}

/// Rounds until all strangers have finished, then one in which everything has to work.
pub(crate) fn until_finished(fabric: &Fabric, seed: u64) -> Outcome {
    fabric.set_deadline(TIMEOUT);
    let honest = Honest::new(fabric)?;
    honest.pgas.world().barrier()?;
    samite_testkit::point("started");
    let first = first_round(seed);
    let (mut round, mut streams) = (first, 0);
    loop {
        round += 1;
        honest.messages(round)?;
        honest.memory(round)?;
        honest.provoke();
        fabric.set_deadline(Duration::from_millis(200));
        // The coordinator hears the strangers as well: their readers may stop a writer. But what
        // comes is right. A name of its own in each round: a stream that was broken off goes on
        // where it was, with other contents.
        match honest.stream(round - first, round)? {
            Ok(_) => streams += 1,
            Err(error) => samite_testkit::say(&error.to_string()),
        }
        fabric.set_deadline(TIMEOUT);
        let mut finished = [u32::from(honest.are_finished())];
        honest.pgas.world().broadcast(0, &mut finished[..])?;
        if finished[0] == 1 {
            break;
        }
    }
    // Nobody is there any more who could be in its way: all of it is there, and right.
    let steps = honest.stream(u64::MAX, round)?.map_err(Failed::new)?;
    same!(steps, if honest.me == READER { STEPS } else { 0 });
    samite_testkit::say(&format!("{} rounds, {streams} streams", round - first));
    Ok(honest.pgas.world().barrier()?)
}

/// Some rounds, whatever they come to: strangers write into the tables by which all this is done.
pub(crate) fn some_rounds(fabric: &Fabric, seed: u64) -> Outcome {
    fabric.set_deadline(TIMEOUT);
    let honest = Honest::new(fabric)?;
    honest.pgas.world().barrier()?;
    samite_testkit::point("started");
    fabric.set_deadline(Duration::from_millis(20));
    for number in 1..=12 {
        let round = first_round(seed) + number;
        let _ = honest.messages(round);
        let _ = honest.memory(round);
        honest.provoke();
        let _ = honest.stream(number, round);
        let _ = fabric.job();
        let _ = fabric.allocate(3 << 20);
    }
    Ok(())
}

/// Rounds of a seed have numbers of their own, small enough for what is computed of them.
fn first_round(seed: u64) -> u64 {
    (seed % (1 << 12)) << 20
}

/// Exact in a double.
fn value(round: u64, step: u64, y: usize, x: usize) -> f64 {
    (round * 1_000_003 + step * 10_007 + y as u64 * 101 + x as u64) as f64
}

impl Honest {
    fn new(fabric: &Fabric) -> Outcome<Honest> {
        let pgas = Pgas::new(fabric)?;
        Ok(Honest {
            fabric: fabric.clone(),
            members: pgas.world().peers().to_vec(),
            me: pgas.world().rank(),
            pgas,
        })
    }

    /// Messages of all kinds of lengths with each other.
    fn messages(&self, round: u64) -> Outcome {
        const SIZES: [usize; 4] = [8, 300, 5000, 300_000];
        let seed = |from: u32, to: u32, number: usize| {
            round << 20 | u64::from(from) << 12 | u64::from(to) << 4 | number as u64
        };
        let others = || (0..HONEST).filter(|rank| *rank != self.me);
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for rank in others() {
            let peer = self.members[rank as usize];
            for (number, size) in SIZES.into_iter().enumerate() {
                let tag = round << 8 | number as u64;
                let receive = self.fabric.irecv(Match::from(peer, tag), vec![0; size])?;
                receives.push((rank, number, receive));
                let bytes = pattern(seed(self.me, rank, number), size);
                sends.push(self.fabric.isend(peer, tag, bytes)?);
            }
        }
        for (rank, number, receive) in receives {
            let (status, bytes) = receive.wait()?;
            same!(status.len, SIZES[number] as u64);
            verify(seed(rank, self.me, number), &bytes.unwrap_or_default())?;
        }
        sends
            .into_iter()
            .try_for_each(|send| send.wait().map(drop))?;
        Ok(())
    }

    /// A segment, a collective, a lock.
    fn memory(&self, round: u64) -> Outcome {
        let world = self.pgas.world();
        let segment = world.allocate::<u64>(512)?;
        let next = (self.me + 1) % HONEST;
        let mine: Vec<u64> = (0..500)
            .map(|index| round * 1000 + index + u64::from(self.me))
            .collect();
        segment.put(next, 8, &mine)?;
        let lock = world.lock()?;
        for _ in 0..3 {
            let guard = lock.acquire()?;
            let count = segment.get_value(0, 0)?;
            segment.put_value(0, 0, count + 1)?;
            guard.release()?;
        }
        world.barrier()?;
        same!(segment.get_value(0, 0)?, 3 * u64::from(HONEST));
        let mut came = vec![0; 500];
        segment.read_local(8, &mut came)?;
        let before = u64::from((self.me + HONEST - 1) % HONEST);
        let is_right = came
            .iter()
            .enumerate()
            .all(|(index, word)| *word == round * 1000 + index as u64 + before);
        check!(is_right, "another one's bytes in a segment");
        let mut sums = vec![0u64; 700];
        world.all_reduce(
            &vec![round + u64::from(self.me); 700][..],
            &mut sums[..],
            Sum,
        )?;
        let sum = u64::from(HONEST) * round + u64::from((0..HONEST).sum::<u32>());
        check!(sums.iter().all(|found| *found == sum), "a wrong sum");
        lock.free()?;
        Ok(segment.free()?)
    }

    /// Talks to the strangers: what they answer, or do not, is not asked.
    fn provoke(&self) {
        let usual = self.fabric.deadline();
        self.fabric.set_deadline(BRIEF);
        for info in self.fabric.peers() {
            if Some(info.identity.job.as_str()) == self.fabric.domain() {
                continue;
            }
            let peer = info.peer;
            drop(self.fabric.isend(peer, 1, vec![7; 400]));
            drop(self.fabric.irecv(Match::from(peer, 1), vec![0; 3000]));
            drop(self.fabric.recv_vec(Match::from(peer, 2)));
            drop(
                self.fabric
                    .request(peer, 0x77, &[1; 50])
                    .map(|request| request.wait()),
            );
            for segment in 0..2 {
                if let Ok(Some(key)) = self.fabric.look_up(peer, segment)
                    && let Ok(remote) = self.fabric.attach(key)
                {
                    let _ = remote.get(0, &mut [0; 64]);
                    let _ = remote.get_batch(8, &[0, 64]).map(|batch| batch.wait());
                }
            }
        }
        self.fabric.set_deadline(usual);
    }

    fn are_finished(&self) -> bool {
        let peers = self.fabric.peers();
        let finished = peers
            .iter()
            .filter(|info| info.identity.program == FINISHED);
        finished.count() >= crate::hostile::STRANGERS as usize
    }

    /// Steps of a stream from all units but one to that one; how many were read, and were ours.
    /// What the stage says is not asked; the steps are.
    fn stream(&self, number: u64, round: u64) -> Outcome<Result<u64, Box<dyn Error>>> {
        let name = format!("stream-{number}");
        if self.me != READER {
            return Ok(self.write(&name, round).map(|()| 0));
        }
        let mut is_wrong = false;
        let ended = self.read(&name, round, &mut is_wrong);
        check!(!is_wrong, "another step than was written");
        Ok(ended)
    }

    fn write(&self, name: &str, round: u64) -> Result<(), Box<dyn Error>> {
        let stage = Stage::join(&self.fabric)?;
        let mut writer = stage.writer(name)?;
        let first = self.me as usize * ROWS;
        for number in 0..STEPS {
            let mut step = writer.step()?;
            let rows =
                Array2::from_shape_fn((ROWS, 40), |(y, x)| value(round, number, first + y, x));
            let shape = [(READER as usize * ROWS) as u64, 40];
            step.put("u", shape, [first as u64, 0], rows.view())?;
            step.commit()?;
        }
        Ok(writer.close()?)
    }

    fn read(&self, name: &str, round: u64, is_wrong: &mut bool) -> Result<u64, Box<dyn Error>> {
        let stage = Stage::join(&self.fabric)?;
        let mut steps = 0;
        for (number, step) in (0..).zip(stage.reader(name)?) {
            let part: Array2<f64> = step?.get("u", [3..20, 5..31])?;
            let is_right = |((y, x), found): ((usize, usize), &f64)| {
                *found == value(round, number, y + 3, x + 5)
            };
            // A stream of that name may be the strangers', or one of another round: then nothing in
            // it is ours.
            let ours = part.indexed_iter().filter(|point| is_right(*point)).count();
            *is_wrong |= ours > 0 && ours < part.len();
            steps += u64::from(ours == part.len());
        }
        Ok(steps)
    }
}
