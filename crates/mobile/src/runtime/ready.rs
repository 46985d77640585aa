//! Code that can run, with its instances.

use super::code::{Codes, Entry, State};
use samite_engines::{Code, Grants, Instance, Kind, Trap};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most instances of a unit. Each has its memory, its stack, and 4 GiB of address space; a new
/// one takes some 25 us.
const INSTANCES_MAX: usize = 64;
/// The most bytes of memory that instances have for themselves.
const INSTANCE_BYTES: u64 = 128 << 20;
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

    /// Returns how many instances there are, and the bytes of their memory.
    fn instances(&self) -> (usize, u64) {
        let all = self.instances.iter().flatten();
        let bytes = all.clone().map(|made| made.instance.memory()).sum();
        (all.count(), bytes)
    }
}

impl Codes {
    /// Drops all instances: they hold the segments that were granted to them.
    pub(crate) fn drop_instances(&mut self) {
        for id in std::mem::take(&mut self.instanced) {
            if let Some(ready) = self.entries.get_mut(&id).and_then(Entry::ready) {
                ready.instances = [None, None];
            }
        }
    }

    /// Code has a new instance. Drops those of the least recently used code, but not of
    /// this one, until there are few enough. Nothing is lost but time: kernels do not rely on what
    /// a call has left.
    #[cold]
    pub(super) fn bound_instances(&mut self, new: u64) {
        let entries = &mut self.entries;
        let mut instances = |id| {
            let ready = entries.get_mut(&id).and_then(Entry::ready);
            ready.map_or((0, 0), |ready| ready.instances())
        };
        self.instanced.insert(new);
        let (mut count, mut bytes) = (0, 0);
        self.instanced.retain(|id| {
            let (of_code, bytes_of_code) = instances(*id);
            count += of_code;
            bytes += bytes_of_code;
            of_code > 0
        });
        while count > INSTANCES_MAX || bytes > INSTANCE_BYTES {
            let Some(id) = self.least_used(&self.instanced, new) else {
                return;
            };
            self.instanced.remove(&id);
            if let Some(ready) = self.entries.get_mut(&id).and_then(Entry::ready) {
                let (of_code, bytes_of_code) = ready.instances();
                (count, bytes) = (count - of_code, bytes - bytes_of_code);
                ready.instances = [None, None];
            }
        }
    }

    /// Drops the least recently used machine code, but not this one, until the rest fits. It
    /// is compiled again when it is called.
    pub(super) fn bound_compiled(&mut self, but: u64) {
        // Functions of the program are not compiled.
        let bytes = |state: &State| match state {
            State::Ready(ready) => ready.code.bytes(),
            _ => 0,
        };
        let states = self.compiled.iter().filter_map(|id| self.entries.get(id));
        let mut sum: u64 = states.map(|entry| bytes(entry.state())).sum();
        while self.compiled.len() > COMPILED_MAX || sum > COMPILED_BYTES {
            let Some(id) = self.least_used(&self.compiled, but) else {
                return;
            };
            let before = self.set(id, State::Idle);
            sum -= before.as_ref().map_or(0, bytes);
        }
    }

    /// Returns the least recently used of these codes, but not this one.
    fn least_used(&self, ids: &BTreeSet<u64>, but: u64) -> Option<u64> {
        let others = ids.iter().copied().filter(|id| *id != but);
        others.min_by_key(|id| self.entries.get(id).map(|entry| entry.used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_engines::Context;

    /// Code whose instances have so much memory.
    #[derive(Debug)]
    struct Large(u64);

    impl Code for Large {
        fn instance(&self, _: &Grants) -> Result<Box<dyn Instance>, Trap> {
            Ok(Box::new(Large(self.0)))
        }
    }

    impl Instance for Large {
        fn call(
            &mut self,
            _: u8,
            context: Box<Context>,
            _: &[u8],
        ) -> (Box<Context>, Result<(), Trap>) {
            (context, Ok(()))
        }

        fn memory(&self) -> u64 {
            self.0
        }
    }

    /// Instances are bounded in number, and in bytes of their memory; the last one stays.
    #[test]
    fn instances_are_bounded() {
        for (memory, expected) in [(0, INSTANCES_MAX), (16 << 20, 8), (INSTANCE_BYTES + 1, 1)] {
            let mut codes = Codes::default();
            for id in 0..100 {
                codes.entry(id);
                let ready = Ready::new(Kind::Wasm, Arc::new(Large(memory)));
                codes.set(id, State::Ready(ready));
                let ready = codes.get(id).and_then(Entry::ready).unwrap();
                assert!(ready.instance(&Grants::default(), 0, 0).is_ok());
                codes.bound_instances(id);
            }
            assert_eq!(codes.instanced.len(), expected, "{memory} bytes");
            assert!(codes.instanced.contains(&99));
        }
    }
}
