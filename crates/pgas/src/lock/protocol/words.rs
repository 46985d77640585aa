//! The contents of a lock's words; [`super`] describes their layout.

const SEQUENCE: u32 = 22;
pub(super) const MEMBER: u64 = (1 << 19) - 1;
pub(super) const FAR: u64 = 1 << 19;
const BROKEN: u64 = 1 << 20;
pub(super) const LEFT: u64 = 1 << 21;

/// The largest number of members that a team with locks can have.
pub(in crate::lock) const MEMBERS_MAX: u32 = MEMBER as u32 - 1;

/// The tail of a lock that is free, but whose last holder died.
pub(super) const FREE_BROKEN: u64 = 1;

/// One stay of one member in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::lock) struct Ticket(pub(in crate::lock) u64);

impl Ticket {
    pub(in crate::lock) fn new(member: u32, sequence: u64) -> Ticket {
        Ticket(sequence << SEQUENCE | (u64::from(member) + 1) << 1)
    }

    pub(in crate::lock) fn member(self) -> u32 {
        (self.0 >> 1 & MEMBER) as u32 - 1
    }

    fn sequence(self) -> u64 {
        self.0 >> SEQUENCE
    }

    /// Returns the link before any unit has announced itself behind this ticket.
    pub(super) fn fresh_link(self) -> u64 {
        self.sequence().wrapping_sub(1) << SEQUENCE
    }

    /// Returns the link after the release, for the next unit.
    pub(super) fn released_link(self, broken: bool) -> u64 {
        self.sequence() << SEQUENCE | if broken { BROKEN } else { 0 }
    }

    /// Returns the next ticket of the same member.
    pub(in crate::lock) fn next(self) -> Ticket {
        Ticket::new(self.member(), self.sequence().wrapping_add(1))
    }

    /// Returns true if this ticket is released, according to the link of its member.
    pub(in crate::lock) fn is_released(self, link: u64) -> bool {
        // Counts may wrap, but no unit is half the range behind.
        let since = (link >> SEQUENCE).wrapping_sub(self.sequence()) << SEQUENCE;
        since >> 63 == 0
    }

    /// Returns the word by which a far waiter is woken.
    pub(in crate::lock) fn wake(self, broken: bool) -> u64 {
        self.0 | u64::from(broken)
    }

    /// Returns the word by which a far waiter is woken if this ticket leaves the queue.
    pub(super) fn wake_without(self) -> u64 {
        self.0 | LEFT
    }

    /// Returns whether a far waiter behind this ticket is woken by this word, and the state of the
    /// lock.
    pub(in crate::lock) fn woken_by(self, word: u64) -> Option<Wait> {
        let broken = word & 1 == 1;
        match word & !(LEFT | 1) == self.0 {
            true if word & LEFT != 0 => Some(Wait::Lost),
            true => Some(Wait::Released { broken }),
            false => None,
        }
    }

    /// Returns whether a near waiter behind this ticket may continue, according to the link.
    #[inline(always)]
    pub(in crate::lock) fn look(self, link: u64) -> Option<Wait> {
        let broken = link & BROKEN != 0;
        match self.is_released(link) {
            true => Some(Wait::Released { broken }),
            false if has_left(link) => Some(Wait::Lost),
            false => None,
        }
    }
}

/// Returns true if a member has left the queue, according to its link.
#[inline(always)]
pub(in crate::lock) fn has_left(link: u64) -> bool {
    link & LEFT != 0
}

/// Returns the ticket in a word, if there is one.
pub(in crate::lock) fn ticket(word: u64) -> Option<Ticket> {
    (word & !1 != 0).then_some(Ticket(word & !1))
}

/// A word of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::lock) enum Word {
    Tail,
    Previous(u32),
    Link(u32),
    /// Which member died as the holder, plus one. For error messages.
    Lost,
}

/// How a wait behind a ticket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::lock) enum Wait {
    Released {
        broken: bool,
    },
    /// The ticket's member is dead, or has left the queue.
    Lost,
}

impl Wait {
    /// Encodes the wait as the answer to [`Step::Await`].
    #[inline(always)]
    pub(in crate::lock) fn answer(self) -> u64 {
        match self {
            Wait::Released { broken } => u64::from(broken),
            Wait::Lost => 2,
        }
    }

    pub(super) fn of(answer: u64) -> Wait {
        match answer {
            2 => Wait::Lost,
            broken => Wait::Released {
                broken: broken == 1,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_tickets_are_known_around_the_circle() {
        let last = u64::MAX >> SEQUENCE;
        for sequence in [1, 2, 1 << 41, last - 1, last, 0] {
            let ticket = Ticket::new(5, sequence);
            assert_eq!(ticket.member(), 5);
            assert!(!ticket.is_released(ticket.fresh_link()));
            assert!(!ticket.is_released(ticket.fresh_link() | FAR | 7));
            assert!(ticket.is_released(ticket.released_link(true)));
            assert!(ticket.is_released(ticket.next().fresh_link() | 3));
            assert!(ticket.is_released(ticket.next().released_link(false)));
            assert!(!ticket.next().is_released(ticket.released_link(false)));
            assert_eq!(ticket.next().fresh_link(), ticket.released_link(false));
            assert_eq!(ticket.woken_by(ticket.next().wake(false)), None);
        }
        assert_eq!(Ticket::new(MEMBERS_MAX - 1, 3).member(), MEMBERS_MAX - 1);
        assert_eq!(ticket(0), None);
        assert_eq!(ticket(FREE_BROKEN), None);
    }
}
