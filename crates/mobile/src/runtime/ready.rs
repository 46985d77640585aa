//! Code that can run, with its instances.

use super::code::{Codes, State};
use samite_engines::{Code, Grants, Instance, Kind, Trap};
use std::sync::Arc;

/// The most instances of a unit. Each has its memory, its stack, and 4 GiB of address space; a new
/// one takes some 25 us.
const INSTANCES_MAX: usize = 64;
/// The most codes that are compiled, and the most bytes of their machine code.
const COMPILED_MAX: usize = 256;
const COMPILED_BYTES: u64 = 64 << 20;

/// Code that can run.
pub(crate) struct Ready {
    pub(crate) kind: Kind,
    pub(super) code: Arc<dyn Code>,
    /// The instance for all grants of this unit, and one for narrowed ones.
    instances: [Option<Made>; 2],
    last: usize,
    is_new: bool,
}

struct Made {
    grants: Grants,
    bits: u16,
    instance: Box<dyn Instance>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Ready {
    pub(crate) fn new(kind: Kind, code: Arc<dyn Code>) -> Ready {
        Ready {
            kind,
            code,
            instances: [None, None],
            last: 0,
            is_new: false,
        }
    }

    /// Returns an instance that reaches the granted segments with these bits, of all that there
    /// are, and no others.
    #[inline]
    pub(super) fn instance(
        &mut self,
        grants: &Grants,
        all: u16,
        bits: u16,
    ) -> Result<&mut Box<dyn Instance>, Trap> {
        let is_it = |made: &Option<Made>| {
            made.as_ref()
                .is_some_and(|made| made.bits == bits && made.grants.is(grants))
        };
        let found = self.instances.iter().position(is_it);
        let at = match found {
            Some(at) => at,
            None => {
                let at = (bits != all) as usize;
                self.last = at;
                let mapped = (0..samite_engines::GRANTS_MAX)
                    .filter(|number| bits >> number & 1 == 0)
                    .fold(grants.clone(), |grants, number| grants.with(number, None));
                self.instances[at] = Some(Made {
                    grants: grants.clone(),
                    bits,
                    instance: self.code.instance(&mapped)?,
                });
                self.is_new = true;
                at
            }
        };
        self.last = at;
        match &mut self.instances[at] {
            Some(made) => Ok(&mut made.instance),
            None => Err(Trap::Other("no instance".into())),
        }
    }

    /// Returns whether an instance was made since this was asked last.
    #[inline]
    pub(super) fn has_new_instance(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Drops the instance that ran last: its memory is not used again after a trap.
    pub(super) fn trapped(&mut self) {
        self.instances[self.last] = None;
    }

    fn instances(&self) -> usize {
        self.instances.iter().flatten().count()
    }
}

impl Codes {
    /// Drops all instances: they hold the segments that were granted to them.
    pub(crate) fn drop_instances(&mut self) {
        for entry in self.entries.values_mut() {
            if let State::Ready(ready) = &mut entry.state {
                ready.instances = [None, None];
            }
        }
    }

    /// Drops instances of the code that was not called longest, but not of this one, until there
    /// are few enough. Nothing is lost but time: kernels do not rely on what a call has left.
    #[cold]
    pub(super) fn bound_instances(&mut self, but: u64) {
        let mut count: usize = self.ready().map(|(.., ready)| ready.instances()).sum();
        while count > INSTANCES_MAX {
            let others = self
                .ready()
                .filter(|(id, _, ready)| *id != but && ready.instances() > 0);
            let Some((id, ..)) = others.min_by_key(|(_, used, _)| *used) else {
                return;
            };
            if let Some(State::Ready(ready)) = self.entries.get_mut(&id).map(|at| &mut at.state) {
                count -= ready.instances();
                ready.instances = [None, None];
            }
        }
    }

    /// Drops machine code that was not called longest, but not this one, until the rest fits. It
    /// is compiled again when it is called.
    pub(super) fn bound_compiled(&mut self, but: u64) {
        // Functions of the program are not compiled.
        let is_compiled = |ready: &Ready| ready.kind != Kind::Function;
        let bytes = |ready: &Ready| ready.code.bytes();
        let compiled = || self.ready().filter(|(.., ready)| is_compiled(ready));
        let mut count = compiled().count();
        let mut sum: u64 = compiled().map(|(.., ready)| bytes(ready)).sum();
        while count > COMPILED_MAX || sum > COMPILED_BYTES {
            let others = (self.ready()).filter(|(id, _, ready)| *id != but && is_compiled(ready));
            let Some((id, ..)) = others.min_by_key(|(_, used, _)| *used) else {
                return;
            };
            if let Some(entry) = self.entries.get_mut(&id) {
                if let State::Ready(ready) = &entry.state {
                    (count, sum) = (count - 1, sum - bytes(ready));
                }
                entry.state = State::Idle;
            }
        }
    }

    /// Returns the code that can run: its id, when it was called last, and itself.
    fn ready(&self) -> impl Iterator<Item = (u64, u64, &Ready)> {
        self.entries
            .iter()
            .filter_map(|(id, entry)| match &entry.state {
                State::Ready(ready) => Some((*id, entry.used, ready)),
                _ => None,
            })
    }
}
