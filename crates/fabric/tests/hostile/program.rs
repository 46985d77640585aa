//! What the units of these tests do with each other: a bit of everything, with checked contents.

use samite_fabric::{
    Atomic, Fabric, Handle, Match, PeerId, Phased, Segment, SegmentKey, Width, WordUpdate,
};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Failed, Outcome, check, same};

/// Replies with what it got.
pub(crate) const ECHO: u16 = 7;
/// Bytes of the segment that each peer has in everybody's segment.
const SHARE: u64 = 8192;
/// Sizes of messages: inline, in a body, and fetched.
const SIZES: [usize; 4] = [5, 200, 3000, 20_000];

/// Number of the segment that can only be read, and its bytes.
const READING: u32 = 77;
const TEXT: usize = 10_000;

/// What a unit has for all others. Anybody may put anything into a segment: only what nobody can
/// write proves that the right bytes have come.
pub(crate) struct Own {
    fabric: Fabric,
    open: Segment,
    reading: Phased,
}

fn tag(round: u64, number: u64) -> u64 {
    round << 8 | number
}

fn text_of(peer: PeerId) -> u64 {
    0x7465_7874 + peer.0 as u64
}

fn seed(from: PeerId, to: PeerId, round: u64, number: u64) -> u64 {
    ((from.0 as u64) << 8 | to.0 as u64) << 32 | tag(round, number)
}

impl Own {
    pub(crate) fn new(fabric: &Fabric, is_private: bool) -> Outcome<Own> {
        fabric.on(ECHO, |_, bytes| Some(bytes.to_vec()));
        let bytes = SHARE * 16;
        let open = if is_private {
            fabric.register(vec![0u8; bytes as usize])?
        } else {
            fabric.allocate(bytes)?
        };
        let mut reading = fabric.allocate_phased(READING, TEXT as u64)?;
        reading
            .bytes()?
            .write(0, &pattern(text_of(fabric.me()), TEXT));
        reading.shut();
        reading.turn(true)?;
        Ok(Own {
            fabric: fabric.clone(),
            open,
            reading,
        })
    }

    /// One round with each of `peers`, who do the same. The first failure with each of them.
    pub(crate) fn round(&self, peers: &[PeerId], round: u64) -> Vec<(PeerId, Outcome)> {
        // All begin before anything is waited for: one who does not answer keeps nobody.
        let begun: Vec<_> = peers
            .iter()
            .map(|peer| (*peer, self.begin(*peer, round)))
            .collect();
        let end = |(peer, begun): (PeerId, Outcome<Begun>)| {
            let ended = begun.and_then(|begun| self.end(peer, round, begun));
            (peer, ended)
        };
        begun.into_iter().map(end).collect()
    }

    fn begin(&self, peer: PeerId, round: u64) -> Outcome<Begun> {
        let (fabric, me) = (&self.fabric, self.fabric.me());
        let mut begun = Begun::default();
        let keys = [self.open.key().to_bytes(), self.reading.key().to_bytes()].concat();
        begun.sends.push(fabric.isend(peer, tag(round, 100), keys)?);
        for (number, size) in SIZES.iter().enumerate() {
            let number = number as u64;
            let buffer = vec![0; *size];
            let wants = Match::from(peer, tag(round, number));
            begun.receives.push(fabric.irecv(wants, buffer)?);
            let bytes = pattern(seed(me, peer, round, number), *size);
            begun
                .sends
                .push(fabric.isend(peer, tag(round, number), bytes)?);
        }
        for (number, size) in [9, 5000].into_iter().enumerate() {
            let bytes = pattern(seed(me, peer, round, 20 + number as u64), size);
            begun.requests.push(fabric.request(peer, ECHO, &bytes)?);
        }
        fabric.signal(peer, round)?;
        Ok(begun)
    }

    fn end(&self, peer: PeerId, round: u64, begun: Begun) -> Outcome {
        let me = self.fabric.me();
        for (number, receive) in begun.receives.into_iter().enumerate() {
            let (status, bytes) = receive.wait()?;
            same!(status.len, SIZES[number] as u64);
            verify(
                seed(peer, me, round, number as u64),
                &bytes.unwrap_or_default(),
            )?;
        }
        for (number, request) in begun.requests.into_iter().enumerate() {
            verify(seed(me, peer, round, 20 + number as u64), &request.wait()?)?;
        }
        let mut keys = [0; 48];
        self.fabric
            .recv(Match::from(peer, tag(round, 100)), &mut keys)?;
        self.fabric.await_signal(peer, round)?;
        let mut keys = keys.as_chunks::<24>().0.iter().map(SegmentKey::from_bytes);
        let mut key = || keys.next().expect("there are two");
        self.write(peer, key())?;
        self.read(peer, key())?;
        for send in begun.sends {
            send.wait()?;
        }
        Ok(())
    }

    /// Everything that writes into a segment.
    fn write(&self, peer: PeerId, key: SegmentKey) -> Outcome {
        check!(key.peer == peer, "a key of {} from {peer}", key.peer);
        let remote = self.fabric.attach(key)?;
        let base = u64::from(self.fabric.identity().unit) * SHARE;
        remote.put(base, &pattern(1, 4999))?;
        remote.put_nb(base, &pattern(2, 300))?.wait()?;
        let word = base + 5000;
        remote.fetch_add(word, 5)?;
        remote.atomic(word, Atomic::Max, Width::W64, 9, 0)?;
        let updates = [(word, 3), (word + 8, 4), (word, 1)];
        let updates = updates.map(|(offset, value)| WordUpdate { offset, value });
        remote
            .update_batch(Atomic::Add, Width::W64, &updates)?
            .wait()?;
        Ok(())
    }

    /// Everything that reads from a segment.
    fn read(&self, peer: PeerId, key: SegmentKey) -> Outcome {
        check!(key.peer == peer, "a key of {} from {peer}", key.peer);
        let remote = self.fabric.attach(key)?;
        let text = pattern(text_of(peer), TEXT);
        let mut back = vec![0; TEXT];
        remote.get(0, &mut back)?;
        check!(back == text, "another text was got");
        let part = remote.get_nb(1234, 999)?.wait()?;
        check!(part == text[1234..2233], "another part was got");
        let words = remote.get_batch(8, &[800, 16, 8000])?.wait()?;
        let expected = [&text[800..808], &text[16..24], &text[8000..8008]].concat();
        check!(words == expected, "other words were gathered");
        Ok(())
    }
}

/// What is in flight between two units.
#[derive(Default)]
struct Begun {
    sends: Vec<Handle<samite_fabric::Sent>>,
    receives: Vec<Handle<samite_fabric::Received>>,
    requests: Vec<Handle<Vec<u8>>>,
}

/// The failures among honest units: there must be none.
pub(crate) fn honest(ended: Vec<(PeerId, Outcome)>, honest: &[PeerId]) -> Outcome {
    for (peer, outcome) in ended {
        if honest.contains(&peer) {
            outcome.map_err(|Failed(why)| Failed(format!("with {peer}: {why}")))?;
        }
    }
    Ok(())
}
