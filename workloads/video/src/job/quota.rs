//! A limit of the processor time of this process, by a control group of the kernel.
//!
//! The group is `samite-video-PID`, below the one that the process is in, or, in version 2, beside
//! it: a group with processes cannot limit groups below it. At the end, the process goes back, and
//! the group is removed; that of a process that was killed is removed by the next one that makes
//! such a group.

use super::{Error, Result};
use std::fs::{create_dir, read_dir, read_to_string, remove_dir, write};
use std::path::{Path, PathBuf};

/// The time in which a group has its part, in microseconds. The kernel accepts parts of at least
/// 1000 µs, and the smallest one of two processors is 0.09.
const PERIOD: u64 = 20_000;
/// The least part that the kernel accepts, in microseconds.
const LEAST: u64 = 1000;

const PREFIX: &str = "samite-video-";

/// A limit, as long as it exists.
#[derive(Debug)]
pub(super) struct Quota {
    /// Where the process was before.
    own: PathBuf,
    group: PathBuf,
}

/// The group of this process.
#[derive(Debug, PartialEq, Eq)]
enum Groups {
    /// Version 1, in the hierarchy for the processor time.
    One(PathBuf),
    /// Version 2, and the one above it, unless it is the root.
    Two { own: PathBuf, above: PathBuf },
}

impl Quota {
    /// Limits this process to a part of the time of all processors together; at most one of them.
    pub(super) fn new(share: f64) -> Result<Quota> {
        let read = |path: &str| read_to_string(path).map_err(|error| wrong(path.as_ref(), &error));
        let groups = find(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?);
        let groups = groups.ok_or_else(|| Error::Quota {
            why: "the kernel has no control groups for processor time that are mounted".to_owned(),
        })?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Quota::below(groups, (share * processors as f64).min(1.0))
    }

    /// Limits this process to a part of one processor.
    fn below(groups: Groups, part: f64) -> Result<Quota> {
        let time = ((part * PERIOD as f64) as u64).max(LEAST);
        let (own, parent, limits) = match groups {
            Groups::One(own) => (
                own.clone(),
                own,
                vec![
                    ("cpu.cfs_period_us", PERIOD.to_string()),
                    ("cpu.cfs_quota_us", time.to_string()),
                ],
            ),
            Groups::Two { own, above } => {
                (own, above, vec![("cpu.max", format!("{time} {PERIOD}"))])
            }
        };
        remove_old(&parent);
        let group = parent.join(format!("{PREFIX}{}", std::process::id()));
        create_dir(&group).map_err(|error| wrong(&group, &error))?;
        // From here on, the group is removed at any error.
        let quota = Quota { own, group };
        for (file, limit) in limits {
            let path = quota.group.join(file);
            write(&path, limit).map_err(|error| wrong(&path, &error))?;
        }
        let path = quota.group.join("cgroup.procs");
        write(&path, std::process::id().to_string()).map_err(|error| wrong(&path, &error))?;
        Ok(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let back = write(
            self.own.join("cgroup.procs"),
            std::process::id().to_string(),
        );
        if let Err(error) = back.and_then(|()| remove_dir(&self.group)) {
            tracing::debug!(%error, "the control group {} stays", self.group.display());
        }
    }
}

fn wrong(path: &Path, error: &std::io::Error) -> Error {
    Error::Quota {
        why: format!("{}: {error}", path.display()),
    }
}

/// Removes the groups of processes that do not exist any more.
fn remove_old(parent: &Path) {
    let Ok(groups) = read_dir(parent) else { return };
    for group in groups.flatten() {
        let name = group.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let is_old = id.is_some_and(|id| !Path::new("/proc").join(id).exists());
        if is_old {
            _ = remove_dir(group.path());
        }
    }
}

/// Finds the groups of this process, by what the kernel says of its groups and its mounts.
fn find(groups: &str, mounts: &str) -> Option<Groups> {
    let mounted = |is_it: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            let (kind, options) = (kind.next()?, kind.nth(1)?);
            let mut place = place.split(' ');
            let (root, at) = (place.nth(3)?, place.next()?);
            is_it(kind, options).then(|| (root.to_owned(), PathBuf::from(at)))
        })
    };
    // A process in a container may see only a part of the hierarchy.
    let below = |(root, at): (String, PathBuf), own: &str| {
        let own = own.strip_prefix(root.as_str()).unwrap_or(own);
        at.join(own.trim_start_matches('/'))
    };
    let own = |is_it: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            is_it(controllers).then_some(path)
        })
    };
    let has_cpu = |controllers: &str| controllers.split(',').any(|one| one == "cpu");
    if let Some(path) = own(&has_cpu) {
        let mount = mounted(&|kind, options| kind == "cgroup" && has_cpu(options))?;
        return Some(Groups::One(below(mount, path)));
    }
    let path = own(&str::is_empty)?;
    let mount = mounted(&|kind, _| kind == "cgroup2")?;
    let root = mount.1.clone();
    let own = below(mount, path);
    let above = own.parent().filter(|_| own != root);
    let above = above.unwrap_or(&own).to_owned();
    Some(Groups::Two { own, above })
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_testkit::require;

    #[test]
    fn the_groups_of_a_process_are_found() {
        let mounts = "30 1 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      31 1 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let one = find("9:name=systemd:/\n3:cpuset:/\n1:cpu:/a/b\n0::/\n", mounts);
        assert_eq!(one, Some(Groups::One("/sys/fs/cgroup/cpu/a/b".into())));
        let two = find("0::/user.slice\n", mounts);
        assert_eq!(
            two,
            Some(Groups::Two {
                own: "/sys/fs/cgroup/unified/user.slice".into(),
                above: "/sys/fs/cgroup/unified".into(),
            })
        );
        let part = "30 1 0:26 /docker/x /sys/fs/cgroup ro shared:1 - cgroup2 none rw\n";
        let two = find("0::/docker/x/y\n", part);
        let (own, above) = ("/sys/fs/cgroup/y".into(), "/sys/fs/cgroup".into());
        assert_eq!(two, Some(Groups::Two { own, above }));
        let (own, above) = ("/sys/fs/cgroup".into(), "/sys/fs/cgroup".into());
        let root = find(
            "0::/\n",
            "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n",
        );
        assert_eq!(root, Some(Groups::Two { own, above }));
        assert_eq!(find("", mounts), None);
        assert_eq!(find("1:cpu:/\n", ""), None);
    }

    /// Plain folders in place of those of the kernel, which would have the files already.
    #[test]
    fn a_limit_is_written_as_the_kernel_wants_it() {
        let folder = tempfile::tempdir().unwrap();
        let pid = std::process::id().to_string();
        let said = |quota: &Quota, file: &str| read_to_string(quota.group.join(file)).unwrap();
        let own = folder.path().join("own");
        create_dir(&own).unwrap();
        let above = folder.path().to_owned();
        let groups = Groups::Two {
            own: own.clone(),
            above,
        };
        let two = Quota::below(groups, 0.5).unwrap();
        assert_eq!(two.group.parent(), Some(folder.path()), "beside its own");
        assert_eq!(said(&two, "cpu.max"), "10000 20000");
        assert_eq!(said(&two, "cgroup.procs"), pid);
        std::fs::remove_dir_all(&two.group).unwrap();
        drop(two);
        let back = read_to_string(own.join("cgroup.procs")).unwrap();
        assert_eq!(back, pid, "the process goes back");
        let one = Quota::below(Groups::One(folder.path().into()), 0.001).unwrap();
        assert_eq!(said(&one, "cpu.cfs_period_us"), "20000");
        assert_eq!(said(&one, "cpu.cfs_quota_us"), "1000", "the least");
        // One of a process that does not exist any more goes, another one stays.
        let old = folder.path().join(format!("{PREFIX}0"));
        let own = folder.path().join(format!("{PREFIX}self"));
        create_dir(&old).unwrap();
        create_dir(&own).unwrap();
        remove_old(folder.path());
        assert!(!old.exists() && own.exists());
        let missing = Groups::One(folder.path().join("missing"));
        let error = Quota::below(missing, 0.5).unwrap_err().to_string();
        assert!(
            error.contains("missing/samite-video-") && error.contains("--pace sleep"),
            "{error}"
        );
    }

    /// Where this process may make groups.
    #[test]
    fn a_limit_is_set_and_removed() {
        let test = "job::quota::tests::a_limit_is_set_and_removed";
        let read = |path: &str| read_to_string(path).unwrap();
        let groups = find(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let parent = groups.map(|groups| match groups {
            Groups::One(own) => own,
            Groups::Two { above, .. } => above,
        });
        let trial =
            parent.map(|parent| parent.join(format!("samite-trial-{}", std::process::id())));
        let may = trial.is_some_and(|trial| {
            let limit = ["cpu.max", "cpu.cfs_quota_us"].map(|file| trial.join(file));
            let is_there = create_dir(&trial).is_ok() && limit.iter().any(|file| file.exists());
            _ = remove_dir(&trial);
            is_there
        });
        if !require(
            test,
            may,
            "run as root, with control groups that can be written",
        ) {
            return;
        }
        let before = read("/proc/self/cgroup");
        let quota = Quota::new(0.5).unwrap();
        let group = quota.group.clone();
        assert!(read("/proc/self/cgroup").contains(PREFIX));
        drop(quota);
        assert!(!group.exists());
        assert_eq!(read("/proc/self/cgroup"), before);
    }
}
