//! Where the locks of a team are stored, and how their words are accessed.
//!
//! All members number locks by the same calls in the same order. So they only have to communicate
//! for every 64th lock, later for fewer: that call allocates a *page*, a segment of the team with
//! room for many locks.
//! ```text
//!   a member's part of a page:
//!     wake      one word for each lock of the page: wakes this member, over messages
//!     records   for each lock whose home is here:
//!                 line 0:      tail, lost
//!                 line 1 + m:  link, previous of member m; only m and the one behind it use it
//! ```
//! Consecutive locks have different homes.

use super::protocol::{MEMBERS_MAX, Step, Word};
use crate::segment::Open;
use crate::{Result, Team};
use samite_fabric::{Atomic, Handle, Remote, Width};
use samite_mem::sync::Ordering;
use samite_mem::{LINE, PEERS_MAX, SharedBytes};
use std::sync::Arc;

const _: () = assert!(PEERS_MAX < MEMBERS_MAX as usize);

/// The number of locks of the first page. Each later page has twice as many, up to the largest.
const FIRST_PAGE: u64 = 64;
const LAST_PAGE: u64 = 4096;
const WORD: u64 = 8;

/// The locks of a team.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pages: Vec<(Arc<Page>, Freed)>,
    /// The number of locks that were created.
    made: u64,
}

/// The number of locks of a page that have been freed.
type Freed = u64;

/// Room for a number of locks.
#[derive(Debug)]
pub(super) struct Page {
    open: Open,
    /// The number of its first lock.
    first: u64,
    locks: u64,
    /// The home of its first lock.
    home: u32,
    members: u32,
    /// Some members reach each other by messages only, so homes have to make progress.
    needs_progress: bool,
}

impl Table {
    /// Returns the number of the next lock and its page. Collective: all members call it in the
    /// same order.
    pub(super) fn make(team: &Team) -> Result<(u64, Arc<Page>)> {
        let (number, last) = {
            let table = team.0.locks.lock();
            (table.made, table.pages.last().map(|(page, _)| page.clone()))
        };
        let page = match last.filter(|page| number < page.end()) {
            Some(page) => page,
            None => {
                // Twice as many as the page before. Computed from the number, as this unit may have
                // freed that page sooner than others.
                let locks = (number + FIRST_PAGE).min(LAST_PAGE);
                let page = Arc::new(Page::new(team, number, locks)?);
                team.0.locks.lock().pages.push((page.clone(), 0));
                page
            }
        };
        team.0.locks.lock().made += 1;
        Ok((number, page))
    }

    /// Counts a lock as freed; a page whose locks are all freed is released.
    pub(super) fn free(team: &Team, number: u64) {
        let mut table = team.0.locks.lock();
        let pages = &mut table.pages;
        for (page, freed) in pages.iter_mut() {
            *freed += u64::from((page.first..page.end()).contains(&number));
        }
        let used_up = pages.extract_if(.., |(page, freed)| *freed >= page.locks);
        used_up.for_each(|(page, _)| page.open.own.nobody_uses_it());
    }

    /// Releases the pages. All members have synchronised since they last used a lock of the team.
    pub(crate) fn end(&self) {
        for (page, _) in &self.pages {
            page.open.own.nobody_uses_it();
        }
    }
}

impl Page {
    fn new(team: &Team, first: u64, locks: u64) -> Result<Page> {
        let members = team.size();
        let records = locks.div_ceil(u64::from(members)) * record(members);
        let bytes = wake_bytes(locks) + records;
        let open = team.allocate::<u64>(bytes / WORD)?.into_open();
        // Locks of the same number in different teams also have different homes.
        let spread = team.id().mixed() >> 32;
        let home = (first.wrapping_add(spread) % u64::from(members)) as u32;
        let needs_progress = open.remotes.iter().any(|remote| remote.mapped().is_none());
        Ok(Page {
            open,
            needs_progress,
            first,
            locks,
            home,
            members,
        })
    }

    fn end(&self) -> u64 {
        self.first + self.locks
    }
}

/// Returns the size in bytes of the record of a lock.
fn record(members: u32) -> u64 {
    LINE * (1 + u64::from(members))
}

fn wake_bytes(locks: u64) -> u64 {
    (locks * WORD).next_multiple_of(LINE)
}

/// The words of one lock, and how to access them.
#[derive(Clone, Debug)]
pub(super) struct Words {
    page: Arc<Page>,
    /// The rank of the member that stores them.
    home: u32,
    /// The offset of its record there.
    record: u64,
    /// The offset of the lock's wake word, the same at all members.
    wake: u64,
}

impl Words {
    pub(super) fn new(page: Arc<Page>, number: u64) -> Words {
        let (index, members) = (number - page.first, u64::from(page.members));
        let home = ((u64::from(page.home) + index) % members) as u32;
        let record = wake_bytes(page.locks) + index / members * record(page.members);
        let wake = index * WORD;
        Words {
            page,
            home,
            record,
            wake,
        }
    }

    pub(super) fn home(&self) -> u32 {
        self.home
    }

    #[inline(always)]
    fn remote(&self) -> &Remote {
        &self.page.open.remotes[self.home as usize]
    }

    #[inline(always)]
    pub(super) fn needs_progress(&self) -> bool {
        self.page.needs_progress
    }

    /// Returns the home's memory, if it is mapped here.
    #[inline(always)]
    pub(super) fn near(&self) -> Option<&SharedBytes> {
        self.remote().mapped()
    }

    /// Returns true if the home still offers them.
    #[inline(always)]
    pub(super) fn is_there(&self) -> bool {
        self.remote().is_offered()
    }

    #[inline(always)]
    pub(super) fn offset(&self, word: Word) -> u64 {
        let member = |member: u32| self.record + LINE * (1 + u64::from(member));
        match word {
            Word::Tail => self.record,
            Word::Lost => self.record + WORD,
            Word::Link(of) => member(of),
            Word::Previous(of) => member(of) + WORD,
        }
    }

    #[inline(always)]
    pub(super) fn load(&self, word: Word) -> Result<u64> {
        let offset = self.offset(word);
        match self.near() {
            // ORDERING: Acquire: pairs with the exchange, swap or store of the unit that wrote the
            // word.
            Some(bytes) => Ok(bytes.u64(offset).load(Ordering::Acquire)),
            None => Ok(self
                .remote()
                .atomic(offset, Atomic::Load, Width::W64, 0, 0)?),
        }
    }

    /// Executes a step on the home's memory and returns the value found; `None` if it is not mapped
    /// here.
    #[inline(always)]
    pub(super) fn apply(&self, step: Step) -> Option<u64> {
        let bytes = self.near()?;
        let at = |word| bytes.u64(self.offset(word));
        // ORDERING: SeqCst, as for every atomic of global memory: what was done under the lock
        // comes before anything that the next holder does.
        const O: Ordering = Ordering::SeqCst;
        Some(match step {
            // ORDERING: Acquire: pairs with the exchange, swap or store of the unit that wrote the
            // word.
            Step::Load(word) => at(word).load(Ordering::Acquire),
            Step::AskLost(member) => at(Word::Link(member)).load(Ordering::Acquire),
            Step::Store(word, value) => {
                // ORDERING: Release: the exchange that follows a store publishes it (L1); a unit
                // that walks the queue later loads it with Acquire.
                at(word).store(value, Ordering::Release);
                0
            }
            Step::Exchange {
                word,
                expected,
                new,
            } => {
                let found = at(word).compare_exchange(expected, new, O, O);
                found.unwrap_or_else(|found| found)
            }
            Step::Swap(word, new) => at(word).swap(new, O),
            Step::Await(_) | Step::Wake { .. } | Step::Ended(_) => 0,
        })
    }

    /// Asks the home to execute a step; the handle returns the value found.
    pub(super) fn ask(&self, step: Step) -> Result<Handle<u64>> {
        let atomic = |word, op, a, b| {
            let offset = self.offset(word);
            self.remote().atomic_nb(offset, op, Width::W64, a, b)
        };
        Ok(match step {
            Step::Load(word) => atomic(word, Atomic::Load, 0, 0)?,
            Step::AskLost(member) => atomic(Word::Link(member), Atomic::Load, 0, 0)?,
            Step::Store(word, value) => {
                let offset = self.offset(word);
                self.remote().put_nb(offset, &value.to_le_bytes())?
            }
            Step::Exchange {
                word,
                expected,
                new,
            } => atomic(word, Atomic::CompareExchange, expected, new)?,
            Step::Swap(word, new) => atomic(word, Atomic::Swap, new, 0)?,
            Step::Await(_) | Step::Wake { .. } | Step::Ended(_) => Handle::ended(),
        })
    }

    /// Returns the word by which this unit is woken over messages.
    pub(super) fn own_wake(&self) -> SharedBytes {
        self.page.open.bytes.slice(self.wake, WORD)
    }

    /// Writes the wake word of another member without waiting: a lost member does not need it.
    pub(super) fn wake(&self, member: u32, word: u64) -> Result<()> {
        let remote = &self.page.open.remotes[member as usize];
        // Not a put, because one that bypasses the member would not wake it.
        drop(remote.atomic_nb(self.wake, Atomic::Swap, Width::W64, word, 0)?);
        Ok(())
    }
}
