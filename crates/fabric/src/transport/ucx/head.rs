//! The head of a frame between nodes.
//!
//! ```text
//! 0 domain   8 peer   12 its incarnation   16 that of the receiver   20 kind   21 class   24 word
//! ```

use super::super::Class;
use crate::PeerId;

/// Its length in bytes. The inline bytes follow.
pub(super) const HEAD: usize = 32;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A frame of the layers above.
    Frame(Class, u8),
    /// What the transport itself says.
    Control(Control),
}

/// What the transports of two processes tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// The sender leaves; the word is how many frames it has sent.
    Bye,
    /// All frames have arrived of the receiver of this, which leaves.
    Heard,
    /// The sender has given the receiver up: no way led there.
    GivenUp,
    /// The sender knows that the receiver has given it up.
    Noted,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) domain: u64,
    pub(super) from: PeerId,
    /// The incarnation of the sender, and that of the receiver.
    pub(super) incarnation: u32,
    pub(super) to: u32,
    pub(super) kind: Kind,
    pub(super) arg: u64,
}

const REQUEST: u8 = 0;
const REPLY: u8 = 1;
const CONTROL: u8 = 2;

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD] {
        let (class, kind) = match self.kind {
            Kind::Frame(Class::Request, kind) => (REQUEST, kind),
            Kind::Frame(Class::Reply, kind) => (REPLY, kind),
            Kind::Control(what) => (CONTROL, what as u8),
        };
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.domain.to_le_bytes());
        head[8..12].copy_from_slice(&self.from.0.to_le_bytes());
        head[12..16].copy_from_slice(&self.incarnation.to_le_bytes());
        head[16..20].copy_from_slice(&self.to.to_le_bytes());
        (head[20], head[21]) = (kind, class);
        head[24..].copy_from_slice(&self.arg.to_le_bytes());
        head
    }

    /// Returns the head of a message, and the inline bytes behind it.
    pub(super) fn decode(header: &[u8]) -> Option<(Head, &[u8])> {
        let (head, inline) = header.split_first_chunk::<HEAD>()?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let head = Head {
            domain: long(0),
            from: PeerId(word(8)),
            incarnation: word(12),
            to: word(16),
            kind: match (head[21], head[20]) {
                (REQUEST, kind) => Kind::Frame(Class::Request, kind),
                (REPLY, kind) => Kind::Frame(Class::Reply, kind),
                (CONTROL, 0) => Kind::Control(Control::Bye),
                (CONTROL, 1) => Kind::Control(Control::Heard),
                (CONTROL, 2) => Kind::Control(Control::GivenUp),
                (CONTROL, 3) => Kind::Control(Control::Noted),
                _ => return None,
            },
            arg: long(24),
        };
        Some((head, inline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_what_was_encoded() {
        for kind in [
            Kind::Frame(Class::Request, 11),
            Kind::Frame(Class::Reply, 0),
            Kind::Control(Control::Bye),
            Kind::Control(Control::Heard),
            Kind::Control(Control::GivenUp),
            Kind::Control(Control::Noted),
        ] {
            let head = Head {
                domain: 0x0123_4567_89ab_cdef,
                from: PeerId::new(3, 5),
                incarnation: 7,
                to: 9,
                kind,
                arg: u64::MAX - 1,
            };
            let mut bytes = head.encode().to_vec();
            bytes.extend_from_slice(b"inline");
            assert_eq!(Head::decode(&bytes), Some((head, &b"inline"[..])));
            assert_eq!(Head::decode(&bytes[..HEAD - 1]), None);
            bytes[21] = 3;
            assert_eq!(Head::decode(&bytes), None);
        }
    }
}
