//! What a member says of the collective that it calls, and how it finds out that another one says
//! something else.

use crate::Error;
use crate::team::Inner;

/// A collective, its name in an error, and what is said when another member calls it instead.
macro_rules! kinds {
    ($($kind:ident: $name:literal,)+) => {
        /// Which collective.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind {
            $($kind),+
        }

        impl Kind {
            /// For the text of an error.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name),+
                }
            }

            /// What differs at a member that calls the one with this number.
            fn called_instead(number: u64) -> &'static str {
                match number {
                    $(number if number == Kind::$kind as u64 => {
                        concat!("which collective, ", $name, " there")
                    })+
                    _ => "which collective",
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
    Setup: "the first collective of a team",
    Refused: "a refused collective",
}

/// The descriptor of a call: equal at all members, or the call is diagnosed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    operator: u8,
    element: u16,
    pub(crate) root: u32,
    /// Elements; of the forms with counts the hash of those that all members know.
    count: u64,
    /// How many collectives were called on the team before.
    pub(crate) number: u64,
}

/// Which argument differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Kind,
    Operator,
    Element,
    Root,
    Count,
    Number,
    /// Bytes from one member to another.
    Bytes,
}

impl What {
    const ALL: [What; 7] = [
        What::Kind,
        What::Operator,
        What::Element,
        What::Root,
        What::Count,
        What::Number,
        What::Bytes,
    ];

    fn text(self, theirs: u64) -> &'static str {
        match self {
            What::Kind => Kind::called_instead(theirs),
            What::Operator => "the operator",
            What::Element => "the size of an element",
            What::Root => "the root",
            What::Count => "the count, or a hash of the counts",
            What::Number => "how many collectives came before",
            What::Bytes => "bytes from one to the other",
        }
    }
}

impl Call {
    pub(crate) fn new(kind: Kind, number: u64) -> Call {
        Call {
            kind,
            operator: 0,
            element: 0,
            root: 0,
            count: 0,
            number,
        }
    }

    pub(crate) fn root(self, root: u32) -> Call {
        Call { root, ..self }
    }

    pub(crate) fn elements<T>(self, count: u64) -> Call {
        let element = size_of::<T>().min(u16::MAX as usize) as u16;
        Call {
            element,
            count,
            ..self
        }
    }

    /// Counts that all members have to give alike, as one number.
    pub(crate) fn counts<T>(self, counts: &[u64]) -> Call {
        // FNV-1a over words.
        let mix = |hash: u64, count: &u64| (hash ^ count).wrapping_mul(0x100_0000_01b3);
        self.elements::<T>(counts.iter().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    pub(crate) fn operator(self, operator: u8) -> Call {
        Call { operator, ..self }
    }

    /// The same call, refused.
    pub(crate) fn refused(self) -> Call {
        Call {
            kind: Kind::Refused,
            ..self
        }
    }

    /// Whether what `from` did before its call happens before what `to` does after it.
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
        let pick = |words: [u64; 3], what| match what {
            What::Kind => words[0] & 0xff,
            What::Operator => words[0] >> 8 & 0xff,
            What::Element => words[0] >> 16 & 0xffff,
            What::Root => words[0] >> 32,
            What::Count => words[1],
            What::Number => words[2],
            What::Bytes => 0,
        };
        if pick(theirs, What::Kind) == Kind::Refused as u64 {
            return Failure::Refused(rank);
        }
        let mut all = What::ALL.into_iter();
        let differs = |what: &What| pick(theirs, *what) != pick(ours, *what);
        let what = all.find(differs).unwrap_or(What::Kind);
        Failure::Mismatch {
            rank,
            what,
            theirs: pick(theirs, what),
            ours: pick(ours, what),
        }
    }
}

/// Why a collective ended early, in ranks of its team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Lost(u32),
    Mismatch {
        rank: u32,
        what: What,
        theirs: u64,
        ours: u64,
    },
    /// That member could not take part; its own error says why.
    Refused(u32),
    /// This unit's own: the fabric, or the arguments.
    Own(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Own(error)
    }
}

impl Failure {
    /// What the fabric says of an operation with the member `rank`.
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

    /// What the fabric says of something that depends on several members: a loss names the one that is lost.
    pub(crate) fn of(error: samite_fabric::Error, team: &Inner) -> Failure {
        let lost = match &error {
            samite_fabric::Error::PeerLost { peer, .. } => {
                team.peers.iter().position(|member| member == peer)
            }
            _ => None,
        };
        match lost {
            Some(rank) => Failure::Lost(rank as u32),
            None => Failure::Own(error.into()),
        }
    }

    /// The member `rank` gives another number of bytes than this one expects.
    pub(crate) fn bytes(rank: u32, theirs: u64, ours: u64) -> Failure {
        Failure::Mismatch {
            rank,
            what: What::Bytes,
            theirs,
            ours,
        }
    }

    /// For the user.
    pub(crate) fn error(self, team: &Inner, what: &'static str) -> Error {
        let unit = |rank: u32| team.group.members()[rank as usize];
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
                what: what.text(theirs),
                theirs,
                ours,
            },
            Failure::Refused(rank) => Error::Refused(unit(rank)),
            Failure::Own(error) => error,
        }
    }

    /// What the member `me` tells the others of it.
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

    /// What another member told; a rank that the team does not have is that of the teller.
    pub(crate) fn from_words(words: [u64; 4], teller: u32, size: u32) -> Failure {
        let rank = u32::try_from(words[1]).ok().filter(|rank| *rank < size);
        let rank = rank.unwrap_or(teller);
        match words[0] & 0xff {
            0 => Failure::Lost(rank),
            1 => {
                let what = What::ALL.get((words[0] >> 8) as usize);
                Failure::Mismatch {
                    rank,
                    what: what.copied().unwrap_or(What::Kind),
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
        let call = Call::new(Kind::Reduce, 7)
            .root(1)
            .elements::<u32>(10)
            .operator(3);
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
        assert_eq!(other(call.root(2)), differs(What::Root, 2, 1));
        assert_eq!(other(call.operator(4)), differs(What::Operator, 4, 3));
        assert_eq!(
            other(call.elements::<u64>(10)),
            differs(What::Element, 8, 4)
        );
        let more = call.elements::<u32>(u64::MAX);
        assert_eq!(other(more), differs(What::Count, u64::MAX, 10));
        let later = Call { number: 8, ..call };
        assert_eq!(other(later), differs(What::Number, 8, 7));
        let kind = Call {
            kind: Kind::Barrier,
            ..call
        };
        assert_eq!(other(kind), differs(What::Kind, 0, Kind::Reduce as u64));
        assert_eq!(other(call.refused()), Err(Failure::Refused(5)));
        let counts = |counts: &[u64]| call.counts::<u32>(counts).words();
        assert_ne!(counts(&[1, 2]), counts(&[2, 1]));
    }

    #[test]
    fn failures_travel() {
        let told = |failure: Failure| Failure::from_words(failure.words(3), 3, 8);
        assert_eq!(told(Failure::Lost(5)), Failure::Lost(5));
        assert_eq!(told(Failure::Refused(2)), Failure::Refused(2));
        assert_eq!(told(Failure::Own(Error::NoSegment)), Failure::Refused(3));
        // What was ours to the teller is the teller's to us.
        assert_eq!(told(Failure::bytes(1, 4, 6)), Failure::bytes(3, 6, 4));
        assert_eq!(Failure::from_words([0, 99, 0, 0], 3, 8), Failure::Lost(3));
    }
}
