//! How the machines of a job learn of each other: by words that the process manager passes on.

use super::place::{Manager, Place};
use super::pmi::Pmi;
use crate::Error;
use samite_pmix::Client;
use std::env;
use std::time::Duration;

/// The connection of this process to its process manager.
#[derive(Debug)]
pub struct Exchange {
    by: By,
    patience: Duration,
}

#[derive(Debug)]
enum By {
    Pmi(Pmi),
    Pmix(Box<Client>),
}

fn failed(error: samite_pmix::Error) -> Error {
    Error::Managed(error.to_string())
}

impl Exchange {
    /// Connects to the manager of this process: by PMI-1 if it offers that, else by PMIx. Each wait
    /// takes at most `patience`.
    ///
    /// # Errors
    /// [`Error::Managed`]: it offers neither, or the library of PMIx is missing.
    pub fn of(place: &Place, patience: Duration) -> Result<Exchange, Error> {
        let is_set = |name| env::var_os(name).is_some();
        let by = match place.manager {
            Manager::Hydra | Manager::Slurm if is_set("PMI_FD") => {
                By::Pmi(Pmi::of_environment(patience)?)
            }
            Manager::OpenMpi | Manager::Slurm if is_set("PMIX_NAMESPACE") => {
                By::Pmix(Box::new(Client::init().map_err(failed)?))
            }
            manager => {
                return Err(Error::Managed(format!(
                    "{manager} offers no exchange of addresses between machines: write \
                     `srun --mpi=pmi2` or `srun --mpi=pmix`, or use `samite run --hosts A,B`"
                )));
            }
        };
        Ok(Exchange { by, patience })
    }

    /// Publishes a word without spaces, of at most 511 bytes. Rank 0 calls it; others read it after
    /// the next [`Exchange::barrier`].
    ///
    /// # Errors
    /// [`Error::Managed`].
    pub fn publish(&mut self, key: &str, word: &str) -> Result<(), Error> {
        match &mut self.by {
            By::Pmi(pmi) => pmi.put(key, word),
            By::Pmix(client) => client.put(key, word).map_err(failed),
        }
    }

    /// Waits until all processes of the job are here. Collective over the job.
    ///
    /// # Errors
    /// [`Error::Managed`]: not all have come in time.
    pub fn barrier(&mut self) -> Result<(), Error> {
        match &mut self.by {
            By::Pmi(pmi) => pmi.barrier(),
            By::Pmix(client) => client.fence(self.patience).map_err(failed),
        }
    }

    /// Returns a word that rank 0 has published before the last barrier.
    ///
    /// # Errors
    /// [`Error::Managed`]: it has not.
    pub fn published(&mut self, key: &str) -> Result<String, Error> {
        match &mut self.by {
            By::Pmi(pmi) => pmi.get(key),
            By::Pmix(client) => client.get(0, key).map_err(failed),
        }
    }

    /// Ends the connection. A manager takes a process that has not done so for one that failed.
    ///
    /// # Errors
    /// [`Error::Managed`].
    pub fn end(self) -> Result<(), Error> {
        match self.by {
            By::Pmi(pmi) => pmi.finalize(),
            By::Pmix(client) => client.finalize().map_err(failed),
        }
    }
}
