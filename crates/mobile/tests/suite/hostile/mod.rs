//! Units that send what no honest one sends, and processes that are no units of the job.

mod capsules;

use crate::{begin, call, fails, failure, kernel, runs};
use samite_fabric::rpc::Life;
use samite_fabric::testing::{self, RawFrame};
use samite_fabric::transport::{Class, Push};
use samite_fabric::upcall::Upcall;
use samite_fabric::{Fabric, Identity, Mask, Match, PeerId};
use samite_mem::ring::Body;
use samite_mobile::{Capsule, Cause};
use samite_testkit::fuzz::Rng;
use samite_testkit::{Cluster, Failed, Outcome, Unit, Who, check, pause, point, same, units};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

const CALL: u8 = 1;
const REPLY: u8 = 2;
const FAIL: u8 = 3;
const FETCH: u8 = 4;
const CODE: u8 = 5;
const PREFETCH: u8 = 6;

const OTHER: u8 = 7;
const NO_CODE: u8 = 8;
const REFUSED: u8 = 9;

/// No honest caller has a call of this number.
const SLOT: u32 = 0x7a7b_7c7d;

/// A frame as it came: its sender, its word, its bytes.
type Frame = (Life, u64, Vec<u8>);

/// Keeps frames, and does nothing with them.
#[derive(Debug, Default)]
struct Kept(Mutex<VecDeque<Frame>>);

impl Upcall for Kept {
    fn arrived(&self, from: Life, word: u64, bytes: &[u8], rest: &Body<'_>) {
        let mut bytes = bytes.to_vec();
        bytes.extend(rest.to_vec());
        self.0.lock().unwrap().push_back((from, word, bytes));
    }

    fn work(&self, _: &Fabric) -> bool {
        false
    }
}

/// Frames by hand.
struct Raw<'a> {
    fabric: &'a Fabric,
    kept: Arc<Kept>,
    to: Life,
}

impl<'a> Raw<'a> {
    /// Speaks with the unit of this number, in the job of that name.
    fn new(fabric: &'a Fabric, job: &str, unit: u32) -> Outcome<Raw<'a>> {
        let kept = Arc::new(Kept::default());
        fabric.set_upcall(Some(kept.clone()));
        let find = || {
            let peers = fabric.peers();
            let is_it = |info: &samite_fabric::PeerInfo| {
                (&info.identity.job[..], info.identity.unit) == (job, unit)
            };
            peers.into_iter().find(is_it)
        };
        let info = fabric.wait_stepping("a unit", &[], find, || false)?;
        let to = Life {
            peer: info.peer,
            incarnation: info.incarnation,
        };
        Ok(Raw { fabric, kept, to })
    }

    fn me(&self) -> Life {
        Life {
            peer: self.fabric.me(),
            incarnation: self.fabric.incarnation(),
        }
    }

    /// A head of a call, or what begins like one: no time is short, nothing is forbidden.
    fn head(&self, kind: u8) -> [u8; 24] {
        let mut head = [0; 24];
        (head[0], head[2]) = (kind, 9);
        head[4..6].copy_from_slice(&[0xff; 2]);
        head[6..8].copy_from_slice(&[0xff; 2]);
        head[8..12].copy_from_slice(&SLOT.to_le_bytes());
        head[12..16].copy_from_slice(&self.me().peer.0.to_le_bytes());
        head[16..20].copy_from_slice(&self.me().incarnation.to_le_bytes());
        (head[20], head[23]) = (6, 0x7f);
        head
    }

    fn post(&self, word: u64, bytes: &[u8]) -> Outcome {
        let (head, payload) = bytes.split_at(bytes.len().min(24));
        let send = || match self.fabric.post_upcall(self.to, word, head, payload) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        };
        let to = [self.to.peer];
        self.fabric.wait_stepping("room", &to, send, || false)??;
        Ok(())
    }

    fn next(&self) -> Outcome<Frame> {
        let take = || self.kept.0.lock().unwrap().pop_front();
        Ok(self.fabric.wait_until("a frame", &[self.to.peer], take)?)
    }

    /// Waits for a frame of this kind. Requests may be repeated; other frames are an error.
    fn expect(&self, kind: u8) -> Outcome<Frame> {
        loop {
            let frame = self.next()?;
            match frame.2.first() {
                Some(first) if *first == kind => return Ok(frame),
                Some(&FETCH) => {}
                _ => {
                    return Err(Failed::new(format!(
                        "not a frame of kind {kind}: {frame:?}"
                    )));
                }
            }
        }
    }

    /// Answers a request for code.
    fn code(&self, id: u64, offset: u32, whole: u32, part: &[u8]) -> Outcome {
        let words = [offset.to_le_bytes(), whole.to_le_bytes()].concat();
        self.post(id, &[&[CODE, 0, 0, 0], &words[..], part].concat())
    }

    /// Waits until the call of `head` has failed at that unit for want of its code, and returns
    /// what is said.
    fn failed(&self) -> Outcome<String> {
        let (.., bytes) = self.expect(FAIL)?;
        same!(bytes[8..12], SLOT.to_le_bytes());
        let (path, text) = failed_at(&bytes)?;
        // Unit 0 itself would be put before it.
        same!(path, [1]);
        Ok(text)
    }

    /// Waits until the unit has taken all that was sent to it: it answers a call of `code`.
    /// Meanwhile it gets no code.
    fn settle(&self, code: &Capsule) -> Outcome {
        let mut call = self.head(CALL);
        call[8..12].copy_from_slice(&(SLOT + 1).to_le_bytes());
        self.post(code.hash().id(), &call)?;
        loop {
            let (_, word, bytes) = self.next()?;
            match bytes.first() {
                Some(&REPLY) if bytes[4..8] == (SLOT + 1).to_le_bytes() => return Ok(()),
                Some(&FETCH) => self.code(word, 0, 0, &[])?,
                _ => {}
            }
        }
    }
}

/// Returns the way of a call that has failed for want of its code, and what is said: what follows
/// the head is the cause, whether units are left out of the way, their number, the units, a text.
fn failed_at(bytes: &[u8]) -> Outcome<(Vec<u32>, String)> {
    same!(bytes[24..26], [NO_CODE, 0]);
    let (way, text) = bytes[27..].split_at(4 * usize::from(bytes[26]));
    let (units, _) = way.as_chunks::<4>();
    let units = units.iter().map(|unit| u32::from_le_bytes(*unit));
    Ok((units.collect(), String::from_utf8_lossy(text).into_owned()))
}

/// Replies with its payload.
fn echo() -> Outcome<Capsule> {
    let echo = "(call $reply (local.get $at) (local.get $len))";
    Ok(Capsule::from_wat(&kernel(echo))?)
}

/// Code that only unit 2 has.
fn at_two() -> Outcome<Capsule> {
    Ok(Capsule::from_wat(&kernel("(drop (call $origin))"))?)
}

fn honest(fabric: &Fabric, unit: u32) -> Outcome {
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let code = mobile.register(echo()?)?;
    if unit == 2 {
        mobile.register(at_two()?)?;
    }
    // Compiled, so that frames by hand find it.
    same!(call(&mobile, unit, &code, b"own")?.wait()?, *b"own");
    fabric.barrier(&members)?;
    if unit == 2 {
        // Unit 0 answers by hand.
        let reply = call(&mobile, 0, &code, b"payload")?.wait()?;
        same!(reply, *b"by hand");
        // It passes these on to unit 1, as calls of code that nobody has: first with forged bytes,
        // then with none.
        for says in [
            "has sent something else",
            "no unit that the call went through",
        ] {
            let ended = failure(call(&mobile, 0, &code, b"passed on")?.wait())?;
            same!(ended.cause, Cause::NoCode);
            same!((&ended.path[..], ended.is_part), (&[2, 0, 1][..], false));
            check!(ended.text.contains(says), "{ended}");
        }
    }
    fabric.barrier(&members)?; //  unit 0 sends what it likes
    for to in [1, 2] {
        for round in 0..100_u64 {
            let reply = call(&mobile, to, &code, &round.to_le_bytes())?.wait()?;
            same!(reply, round.to_le_bytes());
        }
        mobile.prefetch(&code, &[1, 2])?.wait()?;
    }
    fabric.barrier(&members)?;
    Ok(())
}

/// What a warm call is, byte by byte; and lies about code, one by one.
fn one_by_one(raw: &Raw<'_>) -> Outcome {
    let (from, word, bytes) = raw.expect(CALL)?;
    let code = echo()?;
    same!(word, code.hash().id());
    // 24 bytes and the payload.
    same!((bytes.len(), &bytes[24..]), (24 + 7, &b"payload"[..]));
    let mut reply = vec![REPLY, 0, 0, 0];
    reply.extend(&bytes[8..12]);
    reply.extend(b"by hand");
    let back = Raw {
        to: from,
        kept: raw.kept.clone(),
        ..*raw
    };
    back.post(0, &reply)?;
    passed_on(raw, &back)?;
    let members = raw.fabric.job()?;
    raw.fabric.barrier(&members)?;
    forged(raw, from)?;

    let other = Capsule::from_wat(&kernel("(drop (call $hops))"))?;
    let whole = other.bytes();
    let len = whole.len() as u32;
    let has_none = "no unit that the call went through has it";
    let another = "0 has sent something else: bytes that have another hash";
    let parts = "0 has sent something else: parts that do not make a capsule";
    let cut = &whole[..whole.len() - 1];
    let lies: &[(u32, &[u8], &str)] = &[
        (len, whole, another),
        (
            len - 1,
            cut,
            "0 has sent something else: this is not a valid capsule",
        ),
        (0, b"", has_none),
        (0, b"some", has_none),
        (3, b"more than three", parts),
        (u32::MAX, &whole[..], parts),           // longer than any
        (5 << 20, &[7; 4096], parts),            // longer than allowed
        (10_000, b"", parts),                    // nothing
        (10_000, b"in many small parts", parts), // less than a part may have
    ];
    for (number, (whole, part, said)) in lies.iter().enumerate() {
        let id = 0x1234_5678_0000_0000 + number as u64;
        raw.post(id, &raw.head(CALL))?;
        let (_, word, bytes) = raw.expect(FETCH)?;
        same!((word, &bytes[4..8]), (id, &[0; 4][..]));
        raw.code(id, 0, *whole, part)?;
        let text = raw.failed()?;
        check!(text.contains(said), "lie {number}: {text}");
    }
    // A length that grows behind the first part: there was room for the first one only. Once, the
    // code may have been signed meanwhile, and is asked for from its beginning.
    let id = 0x1234_5678_1000_0000;
    raw.post(id, &raw.head(CALL))?;
    for whole in [1_000, 2_000] {
        let (_, word, bytes) = raw.expect(FETCH)?;
        same!((word, &bytes[4..8]), (id, &[0; 4][..]));
        raw.code(id, 0, whole, &[7; 300])?;
        let (_, word, bytes) = raw.expect(FETCH)?;
        same!((word, &bytes[4..8]), (id, &300_u32.to_le_bytes()[..]));
        raw.code(id, 300, 4 << 20, &[7; 300])?;
    }
    let text = raw.failed()?;
    check!(text.contains(parts), "{text}");
    // Parts that nobody has asked for, and those of a wrong place, are not taken.
    let id = code.hash().id() ^ 1;
    raw.code(id, 0, len, whole)?;
    raw.post(id, &raw.head(CALL))?;
    raw.expect(FETCH)?;
    raw.code(id, 77, len, whole)?;
    raw.code(id, u32::MAX, len, whole)?;
    raw.code(id ^ 2, 0, len, whole)?;
    raw.code(id, 0, 0, b"")?;
    raw.failed()?;
    // Right bytes, twice, behind wrong ones.
    let id = other.hash().id();
    raw.post(id, &raw.head(CALL))?;
    raw.expect(FETCH)?;
    raw.code(id, 12, len, &whole[12..])?;
    raw.code(id, 0, len, whole)?;
    raw.code(id, 0, len, whole)?;
    raw.expect(REPLY)?;
    // An answer that does not come is asked for again, from the same byte on.
    let long = Capsule::from_wat(&kernel(&"(drop (call $units))".repeat(200)))?;
    let (id, whole) = (long.hash().id(), long.bytes());
    let len = whole.len() as u32;
    check!(len > 600, "{len} bytes");
    raw.post(id, &raw.head(CALL))?;
    for (from, answer) in [
        (0, None),
        (0, Some(300)),
        (300, None),
        (300, Some(whole.len())),
    ] {
        let (_, word, bytes) = raw.expect(FETCH)?;
        same!((word, &bytes[4..8]), (id, &u32::to_le_bytes(from)[..]));
        if let Some(end) = answer {
            raw.code(id, from, len, &whole[from as usize..end])?;
        }
    }
    raw.expect(REPLY)?;
    // An entry that does not exist, and an origin that does not.
    let mut call = raw.head(CALL);
    call[1] = 200;
    raw.post(id, &call)?;
    raw.expect(FAIL)?;
    for peer in [u32::MAX, 1 << 31, 77_777] {
        let mut call = raw.head(CALL);
        call[12..16].copy_from_slice(&peer.to_le_bytes());
        raw.post(id, &call)?;
        call[1] = 200;
        raw.post(id, &call)?;
    }
    raw.settle(&code)
}

/// Passes calls of unit 2 on to unit 1, under the names of code that nobody has: first with forged
/// bytes, then with none. The failure goes back the whole way.
fn passed_on(raw: &Raw<'_>, back: &Raw<'_>) -> Outcome {
    let other = Capsule::from_wat(&kernel("(drop (call $hops))"))?;
    let whole = other.bytes();
    for (id, sent) in [(0x77, &whole[..]), (0x78, b"")] {
        let (_, _, bytes) = raw.expect(CALL)?;
        raw.post(id, &bytes)?;
        let (_, word, _) = raw.expect(FETCH)?;
        same!(word, id);
        raw.code(id, 0, sent.len() as u32, sent)?;
        let (from, word, mut failed) = raw.expect(FAIL)?;
        same!((from, &failed[8..20]), (raw.to, &bytes[8..20]));
        let (path, text) = failed_at(&failed)?;
        check!(path == [1], "{path:?}: {text}");
        failed[26] += 1;
        failed.splice(27..27, 0_u32.to_le_bytes());
        back.post(word, &failed)?;
    }
    Ok(())
}

/// Code that is sent with wrong bytes is asked of the other unit that has it.
fn forged(raw: &Raw<'_>, other: Life) -> Outcome {
    let code = at_two()?;
    let (id, whole) = (code.hash().id(), code.bytes());
    let mut call = raw.head(CALL);
    call[12..16].copy_from_slice(&other.peer.0.to_le_bytes());
    call[16..20].copy_from_slice(&other.incarnation.to_le_bytes());
    raw.post(id, &call)?;
    let (_, word, _) = raw.expect(FETCH)?;
    same!(word, id);
    let mut wrong = whole.to_vec();
    *wrong.last_mut().expect("it has bytes") ^= 1;
    raw.code(id, 0, wrong.len() as u32, &wrong)?;
    raw.post(id, &raw.head(CALL))?;
    let (.., bytes) = raw.expect(REPLY)?;
    same!(bytes[8..], *b"");
    Ok(())
}

/// Frames of each kind that are right, for changes.
fn frames(raw: &Raw<'_>) -> Outcome<Vec<(u64, Vec<u8>)>> {
    let code = echo()?;
    let id = code.hash().id();
    let with = |kind: u8, rest: &[u8]| [&raw.head(kind)[..], rest].concat();
    let units: Vec<u8> = [1_u32, 2, 1]
        .iter()
        .flat_map(|unit| unit.to_le_bytes())
        .collect();
    let failure = [&[OTHER, 0, 2][..], &[1, 0, 0, 0, 2, 0, 0, 0], b"why"].concat();
    let part = [&[CODE, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0][..], b"some code"].concat();
    Ok(vec![
        (id, with(CALL, b"payload")),
        (id, with(PREFETCH, &units)),
        (0, with(FAIL, &failure)),
        (id, vec![FETCH, 0, 0, 0, 0, 0, 0, 0]),
        (id ^ 1, part),
        (
            0,
            [&[REPLY, 0, 0, 0][..], &SLOT.to_le_bytes(), b"reply"].concat(),
        ),
        (id ^ 3, with(CALL, b"unknown")),
    ])
}

/// Lengths that lie, and 2000 frames with changed, missing and further bytes.
fn at_random(raw: &Raw<'_>) -> Outcome {
    let (code, frames) = (echo()?, frames(raw)?);
    for (word, frame) in &frames {
        for len in 0..frame.len() {
            raw.post(*word, &frame[..len])?;
        }
        raw.settle(&code)?;
    }
    // A path that is longer than its frame, or than any.
    for units in [3, 16, 17, 255] {
        let mut fail = raw.head(FAIL).to_vec();
        fail.extend([OTHER, 1, units, 1, 0, 0, 0]);
        raw.post(0, &fail)?;
        fail.extend([0; 2000]);
        raw.post(0, &fail)?;
    }
    // Units that do not exist, and an odd number of bytes.
    for units in [&[0xff; 9][..], &[0xff; 4000], &[1, 0, 0]] {
        let prefetch = [&raw.head(PREFETCH)[..], units].concat();
        raw.post(code.hash().id(), &prefetch)?;
    }
    raw.settle(&code)?;
    let mut random = Rng::with_seed(7);
    for round in 0..2000 {
        let (word, frame) = &frames[random.usize(..frames.len())];
        let (mut word, mut frame) = (*word, frame.clone());
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..frame.len());
            frame[at] = random.u8(..);
        }
        match random.u8(..6) {
            0 => word ^= 1 << random.u32(..64),
            1 => frame.truncate(random.usize(..frame.len())),
            2 => frame.extend((0..random.usize(..300)).map(|_| random.u8(..))),
            _ => {}
        }
        raw.post(word, &frame)?;
        if round % 50 == 0 {
            raw.settle(&code)?;
        }
    }
    raw.settle(&code)
}

fn raw_frames(fabric: &Fabric, unit: u32) -> Outcome {
    if unit != 0 {
        return honest(fabric, unit);
    }
    let members = fabric.job()?;
    let raw = Raw::new(fabric, &fabric.identity().job, 1)?;
    fabric.barrier(&members)?;
    one_by_one(&raw)?;
    at_random(&raw)?;
    fabric.barrier(&members)?;
    Ok(())
}

on_processes!(frames_by_hand_harm_nobody, runs(3, raw_frames));

/// A process of the same domain that is no unit of the job: it runs nothing and gets nothing.
fn stranger(name: &str, mask: Mask) {
    let body = |unit: &Unit| -> Outcome {
        let of_two = |job: String, number| Identity {
            job,
            size: 2,
            units: 2,
            unit: number,
            rank: number,
            ..unit.identity()
        };
        let join = |identity| Fabric::join(&unit.domain, identity, unit.config.clone());
        if unit.rank < 2 {
            let fabric = &join(of_two(unit.domain.clone(), unit.rank))?;
            let mobile = begin(fabric)?;
            let members = fabric.job()?;
            let code = mobile.register(echo()?)?;
            let answer = |text: &[u8]| call(&mobile, 1, &code, text)?.wait();
            if unit.rank == 0 {
                same!(answer(b"before")?, *b"before");
            }
            fabric.barrier(&members)?;
            if unit.rank == 0 {
                // Unit 1 computes then, so this call waits while others answer it.
                pause("begins");
                let waits = call(&mobile, 1, &code, b"waits")?;
                point("called");
                same!(waits.wait()?, *b"waits");
            } else {
                pause("computes");
                fabric.recv_vec(Match::any(1))?;
            }
            fabric.barrier(&members)?;
            match unit.rank {
                0 => same!(answer(b"after")?, *b"after"),
                _ => same!(mobile.counters().code_sent, 0),
            }
            fabric.barrier(&members)?;
            same!(mobile.counters().calls, 3 * u64::from(unit.rank));
            fabric.barrier(&members)?;
            return Ok(());
        }
        let identity = Identity {
            job: "another".into(),
            size: 1,
            units: 1,
            unit: 0,
            rank: 0,
            ..unit.identity()
        };
        let fabric = &join(identity)?;
        let id = echo()?.hash().id();
        let is_refused = |raw: &Raw<'_>| -> Outcome {
            for (kind, word) in [(CALL, id), (CALL, id ^ 1), (PREFETCH, id)] {
                raw.post(word, &raw.head(kind))?;
                let (from, _, bytes) = raw.expect(FAIL)?;
                same!((from, bytes[24]), (raw.to, REFUSED));
                let text = String::from_utf8_lossy(&bytes[24..]);
                check!(text.contains("only units of the job"), "{text}");
            }
            Ok(())
        };
        pause("waits");
        // Its replies and failures end no call, whatever its number is. Calls of a process have the
        // numbers from 0 on.
        let raw = Raw::new(fabric, &unit.domain, 0)?;
        let failure = [OTHER, 0, 0, b'n', b'o'];
        for slot in 0..8_u32 {
            let slot = slot.to_le_bytes();
            raw.post(0, &[&[REPLY, 0, 0, 0][..], &slot, b"forged"].concat())?;
            let mut fail = raw.head(FAIL);
            fail[8..12].copy_from_slice(&slot);
            fail[12..16].copy_from_slice(&raw.to.peer.0.to_le_bytes());
            fail[16..20].copy_from_slice(&raw.to.incarnation.to_le_bytes());
            raw.post(0, &[&fail[..], &failure].concat())?;
        }
        is_refused(&raw)?; // It has taken all of them.
        pause("forged");
        // It gets no code.
        let raw = Raw::new(fabric, &unit.domain, 1)?;
        raw.post(id, &[FETCH, 0, 0, 0, 0, 0, 0, 0])?;
        is_refused(&raw)?;
        fabric.send(raw.to.peer, 1, b"end")?;
        Ok(())
    };
    units(3)
        .mask(mask)
        .orchestrate_bare(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(1), "computes");
            cluster.wait_point(Who::Unit(0), "begins");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "called");
            cluster.wait_point(Who::Unit(2), "waits");
            cluster.release(Who::Unit(2));
            cluster.wait_point(Who::Unit(2), "forged");
            cluster.release(Who::Unit(1));
            cluster.release(Who::Unit(2));
            cluster.all_end();
        });
}

on_processes!(a_process_of_another_job_is_refused, stranger);

/// Unit 0 has a call of unit 1 when it breaks the rules of the fabric. It is not lost, but unit 1
/// takes nothing more from it: the call ends at once.
fn corrupt(name: &str, mask: Mask) {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        if fabric.identity().unit == 1 {
            let mobile = begin(fabric)?;
            fabric.barrier(members)?;
            let code = mobile.register(echo()?)?;
            let text = fails(call(&mobile, 0, &code, b"payload")?.wait(), Cause::Lost)?;
            check!(text.contains("unit.0"), "{text}");
            point("failed");
            return Ok(());
        }
        let raw = Raw::new(fabric, &fabric.identity().job, 1)?;
        fabric.barrier(members)?;
        raw.expect(CALL)?;
        let frame = RawFrame {
            class: Class::Request,
            kind: 0xee,
            arg: 0,
            inline: Vec::new(),
            body: Vec::new(),
        };
        let send = || match testing::send(fabric, raw.to.peer, &frame) {
            Push::Full => None,
            pushed => Some(pushed),
        };
        same!(
            fabric.wait_stepping("room", &[], send, || false)?,
            Push::Done
        );
        pause("broke");
        Ok(())
    };
    units(2)
        .mask(mask)
        .orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(0), "broke");
            cluster.wait_point(Who::Unit(1), "failed");
            cluster.release(Who::Unit(0));
            cluster.all_end();
        });
}

on_processes!(a_unit_that_breaks_the_rules_ends_calls, corrupt);
