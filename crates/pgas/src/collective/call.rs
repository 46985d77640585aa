//! The descriptor of a collective call, by which members detect that they call different
//! collectives.

use crate::Error;
use crate::team::Inner;
use samite_fabric::PeerId;

/// A collective, its name in an error, and the text for a member that calls it instead of another
/// one.
macro_rules! kinds {
    ($($kind:ident: $name:literal,)+) => {
        /// The kind of a collective.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind {
            $($kind),+
        }

        impl Kind {
            /// Returns the name for the text of an error.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name),+
                }
            }

            /// Returns the name of the collective with this number.
            fn name_of(number: u64) -> &'static str {
                match number {
                    $(number if number == Kind::$kind as u64 => $name,)+
                    _ => "an unknown collective",
                }
            }
        }
    };
}

kinds! {
    Barrier: "a barrier",
    Broadcast: "a broadcast",
    Scatter: "a scatter",
    ScatterV: "a scatter of different blocks",
    Gather: "a gather",
    GatherV: "a gather of different blocks",
    AllGather: "an all-gather",
    AllGatherV: "an all-gather of different blocks",
    Reduce: "a reduction",
    AllReduce: "an all-reduce",
    ReduceScatter: "a reduce-scatter",
    Scan: "a scan",
    ExScan: "an exclusive scan",
    AllToAll: "an all-to-all",
    AllToAllV: "an all-to-all of different blocks",
    End: "the end of global memory",
    Refused: "a refused collective",
}

/// The descriptor of a call. If it differs between members, the call ends with a diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(super) operator: u8,
    /// Bytes of an element.
    pub(super) element: u16,
    pub(super) root: u32,
    /// The number of elements. For the forms with counts, the hash of the counts that all members
    /// know.
    pub(super) count: u64,
    /// How many collectives were called on the team before this one.
    pub(crate) number: u64,
}

/// The arguments in the words of a descriptor: word, first bit, mask and name.
const WHAT: [(usize, u32, u64, &str); 8] = [
    (0, 0, 0xff, "which collective"),
    (0, 8, 0xff, "the operator"),
    (0, 16, 0xffff, "the size of an element"),
    (0, 32, 0xffff_ffff, "the root"),
    (1, 0, u64::MAX, "the count, or a hash of the counts"),
    (2, 0, u64::MAX, "how many collectives came before"),
    (0, 0, 0, "bytes from one to the other"),
    (0, 0, 0, "the team"),
];
const KIND: usize = 0;
const OPERATOR: usize = 1;
/// Index in [`WHAT`]: only two members can compare their byte counts.
const BYTES: usize = 6;
/// Index in [`WHAT`]: only messages compare it.
const TEAM: usize = 7;

impl Call {
    /// Returns the same call, marked as refused.
    pub(crate) fn refused(self) -> Call {
        Call {
            kind: Kind::Refused,
            ..self
        }
    }

    /// Returns true if what `from` did before its call happens before what `to` does after it.
    pub(crate) fn connects(&self, from: u32, to: u32) -> bool {
        match self.kind {
            Kind::Broadcast | Kind::Scatter | Kind::ScatterV => from == self.root,
            Kind::Gather | Kind::GatherV | Kind::Reduce => to == self.root,
            Kind::Scan | Kind::ExScan => from < to,
            Kind::Refused => false,
            _ => true,
        }
    }

    pub(crate) fn words(&self) -> [u64; 3] {
        let head = u64::from(self.kind as u8)
            | u64::from(self.operator) << 8
            | u64::from(self.element) << 16
            | u64::from(self.root) << 32;
        [head, self.count, self.number]
    }

    /// Compares with the descriptor of the member `rank`.
    #[inline]
    pub(crate) fn compare(&self, theirs: [u64; 3], rank: u32) -> Result<(), Failure> {
        match theirs == self.words() {
            true => Ok(()),
            false => Err(self.differs(theirs, rank)),
        }
    }

    #[cold]
    fn differs(&self, theirs: [u64; 3], rank: u32) -> Failure {
        let ours = self.words();
        let pick = |words: [u64; 3], what: usize| {
            let (word, shift, mask, _) = WHAT[what];
            words[word] >> shift & mask
        };
        if pick(theirs, KIND) == Kind::Refused as u64 {
            return Failure::Refused(rank);
        }
        let mut all = 0..WHAT.len();
        let what = all.find(|what| pick(theirs, *what) != pick(ours, *what));
        let what = what.unwrap_or(KIND);
        Failure::Mismatch {
            rank,
            what,
            theirs: pick(theirs, what),
            ours: pick(ours, what),
        }
    }
}

/// Says how the call of another member differs, as the end of a sentence about that member.
/// `what` is a name in [`WHAT`], or one of another comparison, which must not be equal to the two
/// that are looked for here.
pub(crate) fn differs(what: &str, theirs: u64, ours: u64) -> String {
    if what == WHAT[KIND].3 {
        let [theirs, ours] = [theirs, ours].map(Kind::name_of);
        return format!(
            "called {theirs}, and this unit {ours}: all members must call the same collectives in the same order"
        );
    }
    let [theirs, ours] = [theirs, ours].map(|value| match what {
        what if what == WHAT[OPERATOR].3 => super::op::name_of(value).to_owned(),
        _ => value.to_string(),
    });
    format!("called the collective with different arguments: {what} ({theirs} there, {ours} here)")
}

/// Hashes counts that must be equal at all members: FNV-1a over words.
pub(super) fn hash(counts: &[u64]) -> u64 {
    let mix = |hash: u64, count: &u64| (hash ^ count).wrapping_mul(0x100_0000_01b3);
    counts.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Why a collective ended early, in ranks of its team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Lost(u32),
    Mismatch {
        rank: u32,
        /// Index in [`WHAT`].
        what: usize,
        theirs: u64,
        ours: u64,
    },
    /// That member could not take part; its own error says why.
    Refused(u32),
    /// This unit's own failure, of the fabric or of its arguments.
    Own(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Own(error)
    }
}

impl Failure {
    /// Converts an error of the fabric in an operation with the member `rank`.
    pub(crate) fn below(error: samite_fabric::Error, rank: u32) -> Failure {
        match error {
            samite_fabric::Error::PeerLost { .. } | samite_fabric::Error::NoSuchPeer(_) => {
                Failure::Lost(rank)
            }
            samite_fabric::Error::Truncated {
                message, buffer, ..
            } => Failure::bytes(rank, message, buffer),
            other => Failure::Own(other.into()),
        }
    }

    /// Converts an error of the fabric in an operation that depends on several members. A loss
    /// names the lost member.
    pub(crate) fn of(error: samite_fabric::Error, members: &[PeerId]) -> Failure {
        let lost = match &error {
            samite_fabric::Error::PeerLost { peer, .. } => {
                members.iter().position(|member| member == peer)
            }
            _ => None,
        };
        match lost {
            Some(rank) => Failure::Lost(rank as u32),
            None => Failure::Own(error.into()),
        }
    }

    /// Returns the failure of a wait that reached its deadline, last waiting for `peer`.
    #[cold]
    pub(crate) fn timeout(error: samite_fabric::Error, peer: Option<PeerId>) -> Failure {
        let error = match (error, peer) {
            (samite_fabric::Error::Timeout { what, after, .. }, Some(peer)) => {
                let whom = samite_fabric::Whom::Peer(peer);
                samite_fabric::Error::timeout(what, whom, after)
            }
            (error, _) => error,
        };
        Failure::Own(error.into())
    }

    /// Returns the failure for a member `rank` that gives another number of bytes than this one
    /// expects.
    pub(crate) fn bytes(rank: u32, theirs: u64, ours: u64) -> Failure {
        Failure::Mismatch {
            rank,
            what: BYTES,
            theirs,
            ours,
        }
    }

    /// Returns the failure for a member `rank` that calls a collective of another team.
    pub(crate) fn team(rank: u32, theirs: u64, ours: u64) -> Failure {
        Failure::Mismatch {
            rank,
            what: TEAM,
            theirs,
            ours,
        }
    }

    /// Converts the failure into an error for the user.
    pub(crate) fn error(self, team: &Inner, what: &'static str) -> Error {
        let unit = |rank: u32| team.job.named(team.group.members()[rank as usize]);
        match self {
            Failure::Lost(rank) => Error::UnitLost {
                unit: unit(rank),
                what,
            },
            Failure::Mismatch {
                rank,
                what,
                theirs,
                ours,
            } => Error::Mismatch {
                unit: unit(rank),
                what: WHAT[what].3,
                theirs,
                ours,
            },
            Failure::Refused(rank) => Error::Refused(unit(rank)),
            Failure::Own(Error::Fabric(error)) => team.job.fabric.named(error).into(),
            Failure::Own(error) => error,
        }
    }

    /// Returns the words by which the member `me` reports it to the others.
    pub(crate) fn words(&self, me: u32) -> [u64; 4] {
        match self {
            Failure::Lost(rank) => [0, u64::from(*rank), 0, 0],
            Failure::Mismatch {
                what, theirs, ours, ..
            } => [1 | (*what as u64) << 8, u64::from(me), *ours, *theirs],
            Failure::Refused(rank) => [2, u64::from(*rank), 0, 0],
            Failure::Own(_) => [2, u64::from(me), 0, 0],
        }
    }

    /// Converts the report of another member. A rank that the team does not have is replaced by
    /// that of the teller.
    pub(crate) fn from_words(words: [u64; 4], teller: u32, size: u32) -> Failure {
        let rank = u32::try_from(words[1]).ok().filter(|rank| *rank < size);
        let rank = rank.unwrap_or(teller);
        match words[0] & 0xff {
            0 => Failure::Lost(rank),
            1 => {
                let what = (words[0] >> 8) as usize;
                Failure::Mismatch {
                    rank,
                    what: if what < WHAT.len() { what } else { KIND },
                    theirs: words[2],
                    ours: words[3],
                }
            }
            _ => Failure::Refused(rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_that_differs_is_named() {
        let call = Call {
            kind: Kind::Reduce,
            operator: 3,
            element: 4,
            root: 1,
            count: 10,
            number: 7,
        };
        let other = |other: Call| call.compare(other.words(), 5);
        let differs = |what, theirs, ours| {
            Err(Failure::Mismatch {
                rank: 5,
                what,
                theirs,
                ours,
            })
        };
        assert_eq!(other(call), Ok(()));
        assert_eq!(other(Call { root: 2, ..call }), differs(3, 2, 1));
        assert_eq!(
            other(Call {
                operator: 4,
                ..call
            }),
            differs(1, 4, 3)
        );
        assert_eq!(other(Call { element: 8, ..call }), differs(2, 8, 4));
        let more = Call {
            count: u64::MAX,
            ..call
        };
        assert_eq!(other(more), differs(4, u64::MAX, 10));
        let later = Call { number: 8, ..call };
        assert_eq!(other(later), differs(5, 8, 7));
        let kind = Call {
            kind: Kind::Barrier,
            ..call
        };
        assert_eq!(other(kind), differs(KIND, 0, Kind::Reduce as u64));
        assert_eq!(other(call.refused()), Err(Failure::Refused(5)));
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
    }

    #[test]
    fn failures_travel() {
        let told = |failure: Failure| Failure::from_words(failure.words(3), 3, 8);
        assert_eq!(told(Failure::Lost(5)), Failure::Lost(5));
        assert_eq!(told(Failure::Refused(2)), Failure::Refused(2));
        assert_eq!(told(Failure::Own(Error::NoSegment)), Failure::Refused(3));
        // The teller's own value is the other member's value here, and vice versa.
        assert_eq!(told(Failure::bytes(1, 4, 6)), Failure::bytes(3, 6, 4));
        assert_eq!(Failure::from_words([0, 99, 0, 0], 3, 8), Failure::Lost(3));
    }
}
