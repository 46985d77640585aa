//! Pieces of a message that one side holds when the other one fails, gives up or leaves.

use super::*;

/// The sender has taken a piece and sends nothing more (it was killed inside the copy), and the
/// kernel refuses this side: the engine continues with everything else, and with the message at the
/// first sign of life.
#[test]
fn a_sender_inside_its_piece_holds_up_nobody() {
    let mut world = World::new();
    let from = world.peer(1);
    let (word, key) = world.pull(WriteBuf::owned(vec![0; 200]), true);
    assert_eq!(world.claim(word).take_back(), Some(1));
    assert_eq!(world.engine.pull(key), Step::Moved);
    for _ in 0..3 {
        assert_eq!(world.engine.pull(key), Step::Stuck);
    }
    world.claim(word).done_back();
    assert_eq!(world.engine.pull(key), Step::Done);
    let op = world.engine.ops.get(key).map(|op| &op.work);
    assert!(matches!(op, Some(Work::Collect(_))), "{op:?}");
    // A message whose sender dies there ends with its loss.
    let (word, key) = world.pull(WriteBuf::owned(vec![0; 200]), true);
    assert_eq!(world.claim(word).take_back(), Some(1));
    assert_eq!(world.engine.pull(key), Step::Moved);
    assert_eq!(world.engine.pull(key), Step::Stuck);
    world.engine.change(Change::Lost {
        peer: from,
        incarnation: 1,
    });
    let ended = world.engine.ops.take(key);
    assert!(
        matches!(ended, Some(Err(Error::PeerLost { .. }))),
        "{ended:?}"
    );
}

/// A sender's claim word says that it is copying. A sender that was never asked to copy is not
/// waited for.
#[test]
fn a_sender_that_nobody_asked_holds_no_buffer() {
    for helped in [false, true] {
        let mut world = World::new();
        let (word, key) = world.pull(WriteBuf::owned(vec![0; 200]), helped);
        assert_eq!(world.claim(word).take_back(), Some(1));
        world.engine.give_up(key, Error::Cancelled);
        assert_eq!(world.claim(word).take_front(), None, "revoked");
        let ended = world.engine.ops.take(key);
        assert_eq!(ended.is_none(), helped, "{ended:?}");
        if helped {
            assert_eq!(world.engine.pull(key), Step::Stuck);
            world.claim(word).done_back();
            assert_eq!(world.engine.pull(key), Step::Done);
            let ended = world.engine.ops.take(key);
            assert!(matches!(ended, Some(Err(Error::Cancelled))), "{ended:?}");
        }
    }
}

/// A receive is given up after its match: the send does not succeed as if the message had been
/// received.
#[test]
fn a_message_that_was_not_received_is_not_sent() {
    let mut world = World::new();
    let from = world.peer(1);
    let send = world.operations()[0];
    world.say(kind::REFUSED, send, &[], &[]);
    let ended = world.engine.ops.take(send);
    assert_eq!(
        ended.map(|ended| ended.err()),
        Some(Some(Error::NotReceived(from.into())))
    );
    // If this process gives it up, too, it ends then.
    let send = world.operations()[0];
    world.engine.give_up(send, Error::Cancelled);
    let withdrawn = |op: &crate::ops::Op| matches!(op.work, Work::Withdrawn { .. });
    assert_eq!(world.engine.ops.pending(withdrawn).len(), 1);
    world.say(kind::REFUSED, send, &[], &[]);
    assert_eq!(world.engine.ops.pending(withdrawn).len(), 0);
    // As data, which is no longer received.
    let fabric = Fabric::alone(Identity::by_hand("test"), Config::default()).unwrap();
    let (me, len) = (fabric.me(), 16 << 20);
    let send = fabric.isend(me, 1, vec![1; len]).unwrap();
    let mut receive = fabric.irecv(crate::Match::any(1), vec![0; len]).unwrap();
    fabric.progress();
    receive.cancel();
    assert_eq!(receive.wait(), Err(Error::Cancelled));
    assert_eq!(send.wait(), Err(Error::NotReceived(me.into())));
    let send = fabric.isend(me, 1, vec![2; len]).unwrap();
    let (status, bytes) = fabric.recv_vec(crate::Match::any(1)).unwrap();
    assert_eq!((status.len, bytes), (len as u64, vec![2; len]));
    assert!(send.wait().is_ok());
}

/// The agent has seen another incarnation of a peer that broke the rules here, but is alive.
#[test]
fn who_broke_the_rules_may_still_be_copying() {
    let mut world = World::new();
    let from = world.peer(1);
    let (word, key) = world.pull(WriteBuf::owned(vec![0; 200]), true);
    assert_eq!(world.claim(word).take_back(), Some(1));
    world.say(u8::MAX, 0, &[], &[]);
    assert!(world.is_turned_away());
    let another = world.infos[1].incarnation + 1;
    assert!(world.engine.has_been(from, another).is_err());
    assert!(world.engine.ops.take(key).is_none(), "its buffer was freed");
}

/// Returns whether memory is mapped at an address of this process.
fn is_mapped(address: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let range = line.split_whitespace().next().unwrap_or_default();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        (from..to).contains(&address)
    })
}

/// A process leaves while a helper is in the middle of a piece: the helper does not write into
/// freed memory.
#[test]
fn leaving_frees_no_buffer_that_a_peer_writes_into() {
    // So large that the allocator maps each separately.
    const LEN: usize = 64 << 20;
    let mut world = World::new();
    let mut buf = WriteBuf::owned(vec![0; LEN]);
    let kept = buf.address();
    let mut keys = Vec::new();
    // A helper in the middle of a piece, one at its end, and a sender that was never told where the
    // buffer is.
    for (helped, is_done) in [(true, false), (true, true), (false, false)] {
        let buf = std::mem::replace(&mut buf, WriteBuf::owned(vec![0; 100]));
        let (word, key) = world.pull(buf, helped);
        assert_eq!(world.claim(word).take_back(), Some(1));
        if is_done {
            world.claim(word).done_back();
        }
        keys.push((word, key, helped && !is_done));
    }
    assert!(!world.engine.withdraw_all());
    for (word, key, is_stuck) in keys {
        assert_eq!(world.claim(word).take_front(), None, "no further piece");
        assert_eq!(world.engine.ops.take(key).is_none(), is_stuck);
    }
    assert!(!world.engine.end_all(), "no shared memory");
    assert!(is_mapped(kept), "freed under the hand of the helper");
    // Shared memory is not given back to the agent.
    let shared = SharedBytes::adopt(vec![0u64; 100]);
    let (word, _) = world.pull(WriteBuf::shared(shared), true);
    assert!(world.claim(word).take_back().is_some());
    assert!(world.engine.end_all());
}

/// A process leaves with a message that was offered: a receiver that copies it does not deliver the
/// later contents of the freed buffer.
#[test]
fn leaving_revokes_what_was_offered() {
    let mut world = World::new();
    let send = world.operations()[0];
    let Some(Work::Send {
        word: Some(word), ..
    }) = world.engine.ops.get(send).map(|op| &op.work)
    else {
        panic!("an offer has a word");
    };
    let word = *word;
    assert_eq!(world.claim(word).take_front(), Some(0));
    world.engine.end_all();
    assert!(!world.claim(word).intact());
    assert_eq!(world.claim(word).take_front(), None);
}
