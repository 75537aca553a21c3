//! The file system: every request goes through the faults, then to the backing directory.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

use crate::faults::{Faults, Op, Request as Asked};
use crate::nodes::Nodes;
use crate::volatile::Cache;

/// Nothing is cached by the kernel: faults must be seen when they happen.
const TTL: Duration = Duration::ZERO;

#[derive(Debug)]
struct Open {
    file: File,
    path: String,
}

/// The mounted file system.
#[derive(Debug)]
pub struct FuseDisk {
    backing: PathBuf,
    faults: Arc<Faults>,
    cache: Arc<Cache>,
    nodes: Mutex<Nodes>,
    open: Mutex<HashMap<u64, Arc<Open>>>,
    next_handle: AtomicU64,
}

fn attributes(number: u64, metadata: &Metadata) -> FileAttr {
    let time = |seconds: i64, nanos: i64| -> SystemTime {
        UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0))
    };
    FileAttr {
        ino: INodeNo(number),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: u32::try_from(metadata.nlink()).unwrap_or(1),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn open_options(flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    // Reading is always allowed: the kernel reads to fill pages that are written in part.
    options.read(true).write(flags & libc::O_ACCMODE != libc::O_RDONLY);
    options
}

fn open_reply_flags(flags: i32) -> FopenFlags {
    if flags & libc::O_DIRECT != 0 {
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        FopenFlags::empty()
    }
}

fn last_error(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl FuseDisk {
    /// A file system over `backing`.
    pub fn new(backing: PathBuf, faults: Arc<Faults>) -> Self {
        Self {
            backing,
            faults,
            cache: Arc::default(),
            nodes: Mutex::default(),
            open: Mutex::default(),
            next_handle: AtomicU64::new(1),
        }
    }

    /// Its volatile write cache.
    pub fn cache(&self) -> Arc<Cache> {
        Arc::clone(&self.cache)
    }

    fn powered(&self) -> io::Result<()> {
        if self.cache.is_off() { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }

    fn path(&self, number: INodeNo) -> io::Result<PathBuf> {
        self.powered()?;
        self.nodes.lock().path(number.0).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        self.powered()?;
        self.nodes.lock().child(parent.0, name).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn full(&self, path: &Path) -> PathBuf {
        self.backing.join(path)
    }

    fn entry(&self, path: &Path) -> io::Result<FileAttr> {
        let metadata = std::fs::symlink_metadata(self.full(path))?;
        Ok(attributes(self.nodes.lock().number(path), &metadata))
    }

    fn handle(&self, handle: FileHandle) -> io::Result<Arc<Open>> {
        self.powered()?;
        self.open.lock().get(&handle.0).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn keep(&self, file: File, path: &Path) -> FileHandle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, Arc::new(Open { file, path: path.to_string_lossy().into_owned() }));
        FileHandle(handle)
    }

    fn pass(&self, op: Op, path: &str, offset: u64, length: u64) -> io::Result<Vec<crate::faults::Flip>> {
        let outcome = self.faults.pass(Asked { op, path, offset, length }).map_err(io::Error::from_raw_os_error);
        // The power may have gone while the request was held.
        self.powered()?;
        outcome
    }

    fn read_file(&self, inode: INodeNo, handle: FileHandle, offset: u64, size: u32) -> io::Result<Vec<u8>> {
        let open = self.handle(handle)?;
        let flips = self.pass(Op::Read, &open.path, offset, u64::from(size))?;
        let mut data = vec![0; size as usize];
        let mut filled = 0;
        while filled < data.len() {
            match open.file.read_at(&mut data[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        data.truncate(filled);
        self.cache.overlay(inode.0, offset, &mut data);
        for flip in flips {
            if let Some(byte) =
                flip.offset.checked_sub(offset).and_then(|at| data.get_mut(usize::try_from(at).unwrap_or(usize::MAX)))
            {
                *byte ^= flip.mask;
            }
        }
        Ok(data)
    }

    fn write_file(&self, inode: INodeNo, handle: FileHandle, offset: u64, data: &[u8]) -> io::Result<()> {
        let open = self.handle(handle)?;
        self.pass(Op::Write, &open.path, offset, data.len() as u64)?;
        if !self.cache.write(inode.0, &open.file, offset, data)? {
            open.file.write_all_at(data, offset)?;
        }
        Ok(())
    }

    fn sync_file(&self, inode: INodeNo, handle: FileHandle, datasync: bool) -> io::Result<()> {
        let open = self.handle(handle)?;
        self.pass(Op::Fsync, &open.path, 0, 0)?;
        self.cache.flush(inode.0)?;
        if datasync { open.file.sync_data() } else { open.file.sync_all() }
    }

    fn set_size(&self, path: &Path, size: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.full(path))?;
        let before = file.metadata()?.len();
        if size > before {
            self.pass(Op::Allocate, &path.to_string_lossy(), before, size - before)?;
        }
        file.set_len(size)
    }

    fn allocate(&self, handle: FileHandle, offset: u64, length: u64, mode: i32) -> io::Result<()> {
        let open = self.handle(handle)?;
        self.pass(Op::Allocate, &open.path, offset, length)?;
        let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        };
        // SAFETY: a plain system call on a descriptor that `open` keeps alive.
        last_error(unsafe { libc::fallocate(open.file.as_raw_fd(), mode, offset, length) })
    }

    fn rename_path(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        let text = |path: PathBuf| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
        let (source, target) = (text(self.full(from))?, text(self.full(to))?);
        // SAFETY: both are null-terminated strings that outlive the call.
        last_error(unsafe {
            libc::renameat2(libc::AT_FDCWD, source.as_ptr(), libc::AT_FDCWD, target.as_ptr(), flags.bits())
        })?;
        self.nodes.lock().rename(from, to);
        Ok(())
    }

    fn list(&self, inode: INodeNo) -> io::Result<Vec<(u64, FileType, std::ffi::OsString)>> {
        let path = self.path(inode)?;
        let mut entries = vec![(inode.0, FileType::Directory, ".".into()), (inode.0, FileType::Directory, "..".into())];
        for entry in std::fs::read_dir(self.full(&path))? {
            let entry = entry?;
            let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
            entries.push((self.nodes.lock().number(&path.join(entry.file_name())), kind, entry.file_name()));
        }
        entries.sort_by(|a, b| a.2.cmp(&b.2));
        Ok(entries)
    }

    fn statistics(&self) -> io::Result<libc::statvfs> {
        let path = CString::new(self.backing.as_os_str().as_bytes())?;
        // SAFETY: all zeros is a valid statvfs.
        let mut statistics: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: a null-terminated string and a structure that both outlive the call.
        last_error(unsafe { libc::statvfs(path.as_ptr(), &raw mut statistics) })?;
        Ok(statistics)
    }
}

fn reply_empty(reply: ReplyEmpty, outcome: io::Result<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from(error)),
    }
}

fn reply_entry(reply: ReplyEntry, outcome: io::Result<FileAttr>) {
    match outcome {
        Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
        Err(error) => reply.error(Errno::from(error)),
    }
}

impl Filesystem for FuseDisk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.child(parent, name).and_then(|path| self.entry(&path)));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let opened = handle.and_then(|handle| self.handle(handle).ok());
        let outcome = match opened {
            Some(open) => open.file.metadata().map(|metadata| attributes(inode.0, &metadata)),
            None => self.path(inode).and_then(|path| self.entry(&path)),
        };
        match outcome {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let outcome = self.path(inode).and_then(|path| {
            if let Some(mode) = mode {
                std::fs::set_permissions(self.full(&path), std::fs::Permissions::from_mode(mode & 0o7777))?;
            }
            if let Some(size) = size {
                self.set_size(&path, size)?;
            }
            self.entry(&path)
        });
        match outcome {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let outcome = self.child(parent, name).and_then(|path| {
            std::fs::DirBuilder::new().mode(mode & !umask).create(self.full(&path))?;
            self.entry(&path)
        });
        reply_entry(reply, outcome);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let outcome = self.child(parent, name).and_then(|path| {
            std::fs::remove_file(self.full(&path))?;
            self.nodes.lock().remove(&path);
            Ok(())
        });
        reply_empty(reply, outcome);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let outcome = self.child(parent, name).and_then(|path| {
            std::fs::remove_dir(self.full(&path))?;
            self.nodes.lock().remove(&path);
            Ok(())
        });
        reply_empty(reply, outcome);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let outcome = self
            .child(parent, name)
            .and_then(|from| Ok((from, self.child(new_parent, new_name)?)))
            .and_then(|(from, to)| self.rename_path(&from, &to, flags));
        reply_empty(reply, outcome);
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let outcome = self.path(inode).and_then(|path| {
            let file = open_options(flags.0).open(self.full(&path))?;
            Ok(self.keep(file, &path))
        });
        match outcome {
            Ok(handle) => reply.opened(handle, open_reply_flags(flags.0)),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let outcome = self.child(parent, name).and_then(|path| {
            let mut options = open_options(flags | libc::O_RDWR);
            options.mode(mode & !umask);
            let file = if flags & libc::O_EXCL == 0 { options.create(true) } else { options.create_new(true) }
                .truncate(flags & libc::O_TRUNC != 0)
                .open(self.full(&path))?;
            Ok((self.entry(&path)?, self.keep(file, &path)))
        });
        match outcome {
            Ok((attributes, handle)) => {
                reply.created(&TTL, &attributes, Generation(0), handle, open_reply_flags(flags));
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_file(inode, handle, offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_file(inode, handle, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn flush(&self, _: &Request, _inode: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.open.lock().remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, inode: INodeNo, handle: FileHandle, datasync: bool, reply: ReplyEmpty) {
        reply_empty(reply, self.sync_file(inode, handle, datasync));
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let outcome = self.path(inode).and_then(|path| File::open(self.full(&path))?.sync_all());
        reply_empty(reply, outcome);
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.list(inode) {
            Ok(entries) => {
                for (at, (number, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
                    if reply.add(INodeNo(number), at as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn statfs(&self, _: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        match self.statistics() {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.allocate(handle, offset, length, mode));
    }
}
