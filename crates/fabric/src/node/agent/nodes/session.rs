//! Messages of two agents that have greeted each other. Pure: no IO.
//!
//! ```text
//!   length of the message (4 bytes), code (16 bytes), message
//! ```
//!
//! The code is the beginning of a keyed hash (BLAKE3) of the direction, the number of the message
//! in that direction, and the message. Its key comes from the [greeting](super::greeting), and no
//! other connection has it. So a message that someone else has made, changed, repeated, moved or
//! taken out ends the connection. Others can read messages, and can keep the last ones back.

use super::connection::Ended;
use crate::membership::MESSAGE_MAX;
use std::fmt;

const LEN: usize = 4;
const CODE: usize = 16;

/// One side of a connection; see the module's documentation.
pub(super) struct Session {
    key: [u8; 32],
    is_caller: bool,
    sent: u64,
    heard: u64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    pub(super) fn new(key: [u8; 32], is_caller: bool) -> Session {
        Session {
            key,
            is_caller,
            sent: 0,
            heard: 0,
        }
    }

    fn code(&self, of_caller: bool, number: u64, message: &[u8]) -> [u8; CODE] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        let number = number.to_le_bytes();
        hasher.update(&[u8::from(of_caller)]).update(&number);
        hasher.update(message);
        let mut code = [0; CODE];
        hasher.finalize_xof().fill(&mut code);
        code
    }

    /// Appends a message to what is sent.
    pub(super) fn seal(&mut self, message: &[u8], outbox: &mut Vec<u8>) {
        let code = self.code(self.is_caller, self.sent, message);
        self.sent += 1;
        let len = message.len() as u32;
        outbox.extend_from_slice(&len.to_le_bytes());
        outbox.extend_from_slice(&code);
        outbox.extend_from_slice(message);
    }

    /// Takes the messages that have arrived whole.
    ///
    /// # Errors
    /// A message is too long, or not the other agent's next one. Those before it were taken.
    pub(super) fn open(
        &mut self,
        inbox: &mut Vec<u8>,
        mut take: impl FnMut(Vec<u8>),
    ) -> Result<(), Ended> {
        let mut at = 0;
        while let Some(len) = inbox[at..].first_chunk::<LEN>() {
            let len = u32::from_le_bytes(*len) as usize;
            if len > MESSAGE_MAX {
                return Err(Ended::TooLong(len));
            }
            let Some(rest) = inbox.get(at + LEN..at + LEN + CODE + len) else {
                break;
            };
            let (code, message) = rest.split_at(CODE);
            let expected = self.code(!self.is_caller, self.heard, message);
            if !is_same(&expected, code) {
                return Err(Ended::Forged);
            }
            self.heard += 1;
            take(message.to_vec());
            at += LEN + CODE + len;
        }
        inbox.drain(..at);
        Ok(())
    }
}

/// Compares in a time that does not depend on where codes differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let bits = one.iter().zip(other).map(|(one, other)| one ^ other);
    one.len() == other.len() && std::hint::black_box(bits.fold(0, |all, bits| all | bits)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MESSAGES: [&[u8]; 4] = [b"join", b"", b"beat", b"beat"];

    fn pair() -> (Session, Session) {
        (Session::new([7; 32], true), Session::new([7; 32], false))
    }

    /// Returns the messages, as they are sent.
    fn sealed(by: &mut Session) -> Vec<Vec<u8>> {
        let seal = |message: &&[u8]| {
            let mut bytes = Vec::new();
            by.seal(message, &mut bytes);
            bytes
        };
        MESSAGES.iter().map(seal).collect()
    }

    fn open(by: &mut Session, bytes: &[u8]) -> (Vec<Vec<u8>>, Result<(), Ended>) {
        let (mut inbox, mut messages) = (bytes.to_vec(), Vec::new());
        let opened = by.open(&mut inbox, |message| messages.push(message));
        assert!(opened.is_err() || inbox.is_empty());
        (messages, opened)
    }

    #[test]
    fn messages_arrive_both_ways() {
        let (mut caller, mut called) = pair();
        for _ in 0..3 {
            let (messages, opened) = open(&mut called, &sealed(&mut caller).concat());
            assert_eq!((messages, opened), (MESSAGES.map(Vec::from).into(), Ok(())));
            let (messages, opened) = open(&mut caller, &sealed(&mut called).concat());
            assert_eq!((messages, opened), (MESSAGES.map(Vec::from).into(), Ok(())));
        }
    }

    #[test]
    fn messages_that_are_repeated_moved_or_taken_out_are_noticed() {
        let mut sent = Vec::new();
        let mut heard = |order: &[usize]| {
            let (mut caller, mut called) = pair();
            sent = sealed(&mut caller);
            let bytes: Vec<u8> = order.iter().flat_map(|at| sent[*at].clone()).collect();
            let (messages, opened) = open(&mut called, &bytes);
            (messages.len(), opened)
        };
        assert_eq!(heard(&[0, 1, 2, 3]), (4, Ok(())));
        assert_eq!(heard(&[0, 0]), (1, Err(Ended::Forged)));
        // Two messages with the same content.
        assert_eq!(heard(&[0, 1, 3]), (2, Err(Ended::Forged)));
        assert_eq!(heard(&[1]), (0, Err(Ended::Forged)));
        // An agent's own messages.
        let (mut caller, _) = pair();
        let own = sealed(&mut caller);
        assert_eq!(open(&mut caller, &own[0]).1, Err(Ended::Forged));
        // Those of another connection.
        let mut other = Session::new([8; 32], false);
        assert_eq!(open(&mut other, &own[0]).1, Err(Ended::Forged));
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_has_arrived() {
        let (_, mut called) = pair();
        let len = MESSAGE_MAX + 1;
        let bytes = (len as u32).to_le_bytes();
        assert_eq!(open(&mut called, &bytes).1, Err(Ended::TooLong(len)));
    }

    proptest! {
        /// Whatever byte is changed, nothing that was not sent is taken.
        #[test]
        fn a_changed_byte_is_noticed(at: prop::sample::Index, bits in 1..=u8::MAX) {
            let (mut caller, mut called) = pair();
            let mut inbox = sealed(&mut caller).concat();
            let at = at.index(inbox.len());
            inbox[at] ^= bits;
            let mut messages = Vec::new();
            let opened = called.open(&mut inbox, |message| messages.push(message));
            // A length that was made longer waits for the rest.
            prop_assert!(opened.is_err() || !inbox.is_empty());
            prop_assert!(messages.len() < MESSAGES.len());
            prop_assert!(messages.iter().zip(MESSAGES).all(|(heard, sent)| *heard == *sent));
        }
    }
}
