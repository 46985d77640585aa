//! What a peer sends, field by field: no content causes a panic, and invalid content ends only the
//! connection with that peer.

mod bounded;
mod pieces;

use super::*;
use crate::membership::NodeLife;
use crate::node::PrivateExtents;
use crate::node::agent::Node;
use crate::ops::Outcome;
use crate::proto::barrier::{COME, GO, MISSING, NO, key};
use crate::wire::{RemoteAddress, Words};
use crate::{Config, Fabric, Identity};
use samite_mem::SharedBytes;
use samite_mem::copy::cooperative::Claim;
use samite_mem::lend::{ReadBuf, WriteBuf};

const SEGMENT: u32 = 3;
const GENERATION: u32 = 1;
const BYTES: u64 = 4096;

fn caps() -> Caps {
    Caps {
        inline_max: samite_mem::ring::INLINE_BYTES as u64,
        body_max: 64 << 10,
        map: true,
        ..Caps::default()
    }
}

/// An engine that knows two peers and offers a segment.
struct World {
    engine: Engine,
    bytes: SharedBytes,
    infos: Vec<PeerInfo>,
    _node: Node,
}

impl World {
    fn new() -> World {
        let mut node = Node::create(NodeLife::HEAD, 8 << 20).unwrap();
        let pid = std::process::id() as i32;
        let cpus = crate::node::own_cpus();
        let mut infos = Vec::new();
        for rank in 0..3 {
            let identity = Identity {
                rank,
                ..Identity::by_hand("test")
            };
            let (slot, incarnation) = node.admit(pid, None, &cpus, &identity).unwrap();
            infos.push(PeerInfo {
                peer: slot.of(0),
                incarnation,
                identity,
                pid,
            });
        }
        let layout = node.layout().clone();
        let extents = Box::new(PrivateExtents::of(&layout));
        let life = (infos[0].peer.slot(), infos[0].incarnation);
        let membership = NodeMember::new(life, &infos[0].identity, layout, extents, false);
        let mut engine = Engine::new(membership, &Config::default());
        let bytes = SharedBytes::adopt(vec![7u64; BYTES as usize / 8]);
        let offered = Offered {
            registered: None,
            generation: GENERATION,
            bytes: Access::Shared(bytes.clone()),
        };
        engine.offered.insert(SEGMENT, offered);
        engine
            .handlers
            .insert(1, Box::new(|_, _| Some(vec![1; 100])));
        let mut world = World {
            engine,
            bytes,
            infos,
            _node: node,
        };
        for index in 0..3 {
            world.join(index);
        }
        world
    }

    /// Lets the peer join, or join again after it broke the rules.
    fn join(&mut self, index: usize) {
        let info = self.infos[index].clone();
        self.engine.change(Change::Joined(info, caps()));
    }

    fn peer(&self, index: usize) -> PeerId {
        self.infos[index].peer
    }

    /// Sends a frame from the first peer.
    fn say(&mut self, kind: u8, arg: u64, inline: &[u8], body: &[u8]) {
        let from = self.peer(1);
        self.engine.frame(Incoming {
            from,
            kind,
            arg,
            inline,
            body: Body::Slice(body),
        });
    }

    /// Returns whether nothing is accepted from the first peer any more, and everything from the
    /// second.
    fn is_turned_away(&mut self) -> bool {
        let other = self.peer(2);
        assert!(
            self.engine.gone(other).is_none(),
            "another peer pays for it"
        );
        let gone = self.engine.gone(self.peer(1));
        matches!(gone, Some(Error::PeerCorrupt { .. }))
    }

    /// Starts one operation of each kind that waits for the first peer.
    fn operations(&mut self) -> Vec<Key> {
        let peer = Some(self.peer(1));
        let send = Work::Send {
            tag: 0,
            buf: ReadBuf::owned(vec![1; 1000]),
            word: self.engine.words.take(&self.engine.node.heap),
        };
        let (status, len) = (
            Status {
                from: self.peer(1),
                incarnation: self.infos[1].incarnation,
                tag: 0,
                len: 1000,
            },
            1000,
        );
        let collect = crate::ops::Collect {
            buf: WriteBuf::owned(vec![0; len]),
            status,
            send: 1,
            got: 0,
            then: crate::ops::Then::Complete,
        };
        let works = [
            send,
            Work::Receive {
                buf: WriteBuf::owned(vec![0; len]),
            },
            Work::Collect(Box::new(collect)),
            Work::Reply,
            Work::Get {
                buf: WriteBuf::owned(vec![0; len]),
                got: 0,
            },
            Work::Answer { left: 2 },
        ];
        let add = |work| self.engine.ops.add(peer, "test", work);
        works.into_iter().map(add).collect()
    }
}

fn place(incarnation: u32) -> [u64; 3] {
    let place = RemoteAddress {
        segment: SEGMENT,
        generation: GENERATION,
        incarnation,
        offset: 0,
    };
    place.words()
}

#[test]
fn a_gather_of_any_size_is_refused_before_anything_is_allocated() {
    let mut world = World::new();
    let [a, b, c] = place(world.infos[0].incarnation);
    for size in [1 << 62, 1 << 63, u64::MAX, (64 << 10) + 1, 0] {
        let inline = Words([a, b, c, size, 0]).bytes();
        world.say(kind::GATHER, 1, &inline, &[0; 8]);
        assert!(world.is_turned_away(), "a gather of {size} bytes");
        world.join(1);
    }
    let inline = Words([a, b, c, 16, 0]).bytes();
    world.say(kind::GATHER, 1, &inline, &[0; 64]);
    assert!(!world.is_turned_away(), "an honest one");
}

/// A receive from any source waits for one sender once that has offered a message.
#[test]
fn a_late_rest_names_its_sender() {
    let mut world = World::new();
    let work = Work::Receive {
        buf: WriteBuf::owned(vec![0; 1 << 20]),
    };
    let key = world.engine.ops.add(None, "receive", work);
    world.engine.matcher.post(Match::any(8), key);
    let late = |world: &mut World| {
        let after = Duration::from_secs(1);
        let late = world.engine.timeout("receive", Whom::Any, after, Some(key));
        late.to_string()
    };
    let nothing = late(&mut world);
    assert!(nothing.contains("from any peer within"), "{nothing}");
    let offer = crate::wire::Offer {
        send: 1,
        len: 1 << 20,
        address: 4096,
        place: 0,
        claim: 0,
        offset: 0,
    };
    world.say(kind::RTS, 8, &offer.words().bytes(), &[]);
    assert_eq!(
        late(&mut world),
        "the message with tag 8 from test.1 did not arrive completely within 1s; is it stopped, or \
         waiting for this process?"
    );
}

#[test]
fn an_answer_does_not_end_a_get() {
    let mut world = World::new();
    let buf = WriteBuf::owned(vec![0; 8]);
    let key = world
        .engine
        .ops
        .add(Some(world.peer(1)), "get", Work::Get { buf, got: 0 });
    world.say(kind::ANSWER, key, &Words([0, 5]).bytes(), &[]);
    assert!(world.is_turned_away());
    let ended = world.engine.ops.take(key);
    assert!(
        matches!(ended, Some(Err(Error::PeerCorrupt { .. }))),
        "{ended:?}"
    );
}

#[test]
fn another_life_is_refused_by_the_owner() {
    let mut world = World::new();
    let life = world.infos[0].incarnation;
    for (asked, value) in [(life + 1, 7), (life, 9)] {
        let [a, b, c] = place(asked);
        let nine = 9u64.to_le_bytes();
        world.say(kind::PUT, 1, &Words([a, b, c]).bytes(), &nine);
        let swap = crate::atomic::atomic_code(crate::Atomic::Swap, crate::Width::W64);
        let inline = Words([a, b, c + 8, swap, 9, 0]).bytes();
        world.say(kind::ATOMIC, 1, &inline, &[]);
        let pair: Vec<u8> = [16u64, 9].into_iter().flat_map(u64::to_le_bytes).collect();
        world.say(kind::UPDATES, 1, &Words([a, b, c, swap]).bytes(), &pair);
        for word in 0..3 {
            let mut seen = [0; 8];
            world.bytes.read(word * 8, &mut seen);
            assert_eq!(u64::from_le_bytes(seen), value, "word {word}, life {asked}");
        }
    }
    assert!(!world.is_turned_away(), "a late request is no crime");
    let answer = world.operations()[5];
    world.say(kind::ANSWER, answer, &Words([4, 17]).bytes(), &[]);
    let ended = world.engine.ops.take(answer);
    assert!(
        matches!(
            ended,
            Some(Err(Error::PeerLost {
                incarnation: 17,
                ..
            }))
        ),
        "{ended:?}"
    );
}

#[test]
fn who_asks_beyond_its_credits_is_turned_away() {
    let [a, b, c] = place(1);
    let pair = [0; 16];
    let add = crate::atomic::atomic_code(crate::Atomic::Add, crate::Width::W64);
    let requests: [(u8, Vec<u64>, &[u8]); 5] = [
        (kind::GET, vec![a, b, c, 8, 0], &[]),
        (kind::PUT, vec![a, b, c], &pair[..8]),
        (kind::ATOMIC, vec![a, b, c, add, 1, 0], &[]),
        (kind::UPDATES, vec![a, b, c, add], &pair),
        (kind::ACTIVE, vec![1], &[]),
    ];
    for (kind, words, body) in requests {
        let mut world = World::new();
        assert_eq!(world.infos[0].incarnation, 1);
        let inline: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        for asked in 0..crate::proto::CREDITS {
            world.say(kind, 1, &inline, body);
            assert!(!world.is_turned_away(), "kind {kind} after {asked}");
        }
        world.say(kind, 1, &inline, body);
        assert!(world.is_turned_away(), "kind {kind}");
    }
}

#[test]
fn signals_that_were_taken_leave_nothing() {
    let mut world = World::new();
    let from = world.peer(1);
    for key in 0..1000 {
        world.say(kind::SIGNAL, key, &[], &[]);
        world.say(kind::SIGNAL, key, &[], &[]);
        assert!(world.engine.take_signal(from, key));
        assert!(world.engine.take_signal(from, key));
        assert!(!world.engine.take_signal(from, key));
    }
    assert!(world.engine.peer(from).signals.is_empty());
    assert!(!world.engine.take_signal(PeerId(u32::MAX), 1));
}

/// Every kind of frame, with each of some numbers in each word, to operations of every kind.
#[test]
fn no_word_of_any_frame_is_a_panic() {
    const WORDS: [u64; 10] = [
        0,
        1,
        8,
        1 << 16,
        (1 << 31) + 1,
        1 << 32,
        1 << 62,
        1 << 63,
        u64::MAX - 7,
        u64::MAX,
    ];
    let mut world = World::new();
    let [a, b, c] = place(world.infos[0].incarnation);
    let bodies: [&[u8]; 5] = [&[], &[0; 7], &[0; 8], &[1; 16], &[2; 4096]];
    for kind in 0..=21 {
        for (word, value) in (0..6).flat_map(|word| WORDS.map(|value| (word, value))) {
            for body in bodies {
                for target in 0..8 {
                    let keys = world.operations();
                    let arg = keys.get(target).copied().unwrap_or(value);
                    let mut words = [a, b, c, 8, 0, 0];
                    words[word] = value;
                    let inline: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
                    world.say(kind, arg, &inline, body);
                    world.say(kind, arg, &inline[..word * 8], body);
                    for key in keys {
                        world.engine.give_up(key, Error::Cancelled);
                        // Its result is a value or an error.
                        let ended = world.engine.ops.take(key);
                        if let Some(Ok(outcome)) = ended {
                            let fits = !matches!(outcome, Outcome::Viewed(..));
                            assert!(fits, "kind {kind}: {outcome:?}");
                        }
                    }
                    world.is_turned_away();
                    world.engine.ops = Ops::default();
                    world.engine.words.give_back(0);
                    world.engine.active.clear();
                    world.join(1);
                }
            }
        }
    }
}

impl World {
    /// Starts to pull a message of two pieces, with its claim word; `helped`: the sender was told
    /// where the buffer is.
    fn pull(&mut self, buf: WriteBuf, helped: bool) -> (u32, Key) {
        let (from, len) = (self.peer(1), buf.len());
        let incarnation = self.infos[1].incarnation;
        let heap = self.engine.node.heap.clone();
        let word = self.engine.words.take(&heap).unwrap();
        let offset = self.engine.words.offset(word);
        let pull = crate::ops::Pull {
            buf,
            status: Status {
                from,
                incarnation,
                tag: 0,
                len,
            },
            send: 5,
            // No process has this id, so the kernel refuses.
            source: crate::ops::Source::Process {
                pid: i32::MAX,
                address: 4096,
            },
            claim: self.engine.words.at(offset).unwrap(),
            claim_at: offset,
            piece: len.div_ceil(2),
            then: crate::ops::Then::Complete,
            helped,
            ending: None,
        };
        let work = Work::Pull(Box::new(pull));
        (word, self.engine.ops.add(Some(from), "receive", work))
    }

    /// Returns the claim word, as both sides of a message of two pieces see it.
    fn claim(&self, word: u32) -> Claim<'_> {
        Claim::new(self.engine.words.word(word), 2)
    }
}

/// Endless barriers with new lists end the connection instead of filling memory; so does a step
/// that does not exist, a value that is missing, or a peer that cannot be one. Nothing is kept of
/// an answer that arrives too late.
#[test]
fn barriers_are_bounded() {
    let mut world = World::new();
    for list in 0..1 << 13 {
        world.say(kind::SIGNAL, key(GO, list, 1), &[7; 8], &[]);
        world.say(kind::SIGNAL, key(MISSING, list, 1), &[0; 8], &[]);
    }
    assert!(!world.is_turned_away());
    let mut said = 0;
    while !world.is_turned_away() {
        world.say(kind::SIGNAL, key(COME, said, 1), &[7; 8], &[]);
        said += 1;
        assert!(said < 1 << 20);
    }
    let large = (1_u64 << 32).to_le_bytes();
    let broken: [(u64, &[u8]); 8] = [
        (COME, &[]),
        (GO, &[7; 7]),
        (NO, &[0; 8]),
        (NO, &[large, [0; 8]].concat()),
        (NO, &[[0; 8], large].concat()),
        (MISSING, &[]),
        (MISSING, &large),
        (MISSING + 1, &[0; 16]),
    ];
    for (step, inline) in broken {
        world.join(1);
        assert!(!world.is_turned_away());
        world.say(kind::SIGNAL, key(step, 0, 1), inline, &[]);
        assert!(world.is_turned_away(), "{step}, {inline:?}");
    }
}

/// Frames are queued only for peers that have joined.
#[test]
fn nothing_waits_for_who_never_came() {
    let mut world = World::new();
    world.engine.post(PeerId(40), kind::PACE, 0, &[]);
    assert!(!world.engine.has_unsent());
    let peer = world.peer(1);
    world.engine.post(peer, kind::PACE, 0, &[]);
    assert!(world.engine.has_unsent());
}
