"""Locks on files, between threads and between processes."""

import gc
import os
import stat
import subprocess
import sys
import textwrap

from devicetrack import filelock
from devicetrack import ownfiles
from devicetrack.tests import base


class FileLockTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.temp_dir(), 'lock')

    def lock(self):
        lock = filelock.FileLock(self.path)
        self.addCleanup(lock.release)
        return lock

    def run_child(self, program, *args, **kwargs):
        answer = subprocess.run([sys.executable, '-c', textwrap.dedent(program), self.path, *args],
                                capture_output=True, text=True, check=True, **kwargs)
        return answer.stdout.strip()

    def test_excludes_another_object_in_this_process(self):
        with self.lock():
            self.assertRaises(filelock.FileLocked, self.lock().acquire)

    def test_it_makes_no_file_in_a_directory_that_another_user_could_change(self):
        os.chmod(os.path.dirname(self.path), 0o777)
        self.assertRaises(ownfiles.NotOurs, self.lock().acquire)
        self.assertRaises(ownfiles.NotOurs, ownfiles.make_file, self.path)
        self.assertFalse(os.path.exists(self.path))
        os.chmod(os.path.dirname(self.path), 0o700)
        self.lock().acquire()

    def test_excludes_another_process(self):
        program = """
            import sys
            from devicetrack import filelock
            try:
                filelock.FileLock(sys.argv[1]).acquire()
            except filelock.FileLocked:
                print('locked')
            else:
                print('taken')
        """
        with self.lock():
            self.assertEqual('locked', self.run_child(program))
        self.assertEqual('taken', self.run_child(program))

    def test_its_holder_can_be_told(self):
        program = """
            import os, sys
            from devicetrack import filelock
            lock = filelock.FileLock(sys.argv[1])
            lock.acquire()
            print(os.getpid(), flush=True)
            sys.stdin.read()
        """
        self.assertIsNone(filelock.holder(self.path))           # there is no such file
        child = subprocess.Popen([sys.executable, '-c', textwrap.dedent(program), self.path], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with child:
            assert child.stdin is not None and child.stdout is not None
            self.assertEqual(int(child.stdout.readline()), filelock.holder(self.path))
            child.stdin.close()
        self.assertIsNone(filelock.holder(self.path))
        with self.lock():
            self.assertEqual(os.getpid(), filelock.holder(self.path))

    def test_a_holder_that_cannot_be_told_is_no_error(self):
        table = os.path.join(self.temp_dir(), 'locks')
        self.patch(filelock, '_LOCKS', table)
        with self.lock():
            self.assertIsNone(filelock.holder(self.path))
            here = os.stat(self.path)
            name = f'{os.major(here.st_dev):02x}:{os.minor(here.st_dev):02x}:{here.st_ino}'
            for text in (b'\xff', b'', f'1: FLOCK ADVISORY WRITE x {name} 0 EOF'.encode(),
                         f'1: -> FLOCK ADVISORY WRITE 7 {name} 0 EOF'.encode(),         # it waits for the lock
                         f'1: POSIX ADVISORY WRITE 7 {name} 0 EOF'.encode(),
                         f'1: FLOCK ADVISORY WRITE 0 {name} 0 EOF'.encode(),
                         f'1: FLOCK ADVISORY WRITE -1 {name} 0 EOF'.encode()):
                with open(table, 'wb') as file:
                    file.write(text)
                self.assertIsNone(filelock.holder(self.path), str(text))

    def test_is_free_again_after_release(self):
        first = self.lock()
        first.acquire()
        first.release()
        self.lock().acquire()

    def test_waits_until_it_is_free(self):
        first, second = self.lock(), self.lock()
        first.acquire()
        first_answer, second_answer = self.together(first.release, lambda: second.acquire(timeout_s=30))
        self.assertEqual((None, None), (first_answer, second_answer))

    def test_a_child_that_was_given_the_descriptor_keeps_it(self):
        lock = self.lock()
        lock.acquire()
        child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, pass_fds=[lock.fd])
        lock.release()
        self.assertRaises(filelock.FileLocked, self.lock().acquire)
        child.communicate()
        self.lock().acquire()

    def test_an_unlock_ends_it_for_a_child_too(self):
        lock = self.lock()
        lock.acquire()
        child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, pass_fds=[lock.fd])
        lock.unlock()
        self.lock().acquire()
        child.communicate()

    def test_an_unlock_in_a_forked_child_ends_nothing(self):
        lock = self.lock()
        lock.acquire()
        child = os.fork()
        if not child:
            lock.unlock()
            os._exit(0)
        os.waitpid(child, 0)
        self.assertRaises(filelock.FileLocked, self.lock().acquire)

    def test_no_other_child_has_it(self):
        lock = self.lock()
        lock.acquire()
        child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, close_fds=False)
        lock.release()
        self.lock().acquire()
        child.communicate()

    def test_its_file_is_private_and_stays(self):
        with self.lock():
            pass
        self.assertEqual(0o600, stat.S_IMODE(os.stat(self.path).st_mode))

    def test_a_lock_that_is_not_held_has_no_descriptor(self):
        lock = self.lock()
        self.assertRaises(ValueError, lambda: lock.fd)
        lock.release()

    def test_a_path_that_is_none_leaves_nothing_to_close(self):
        unraisable: list[object] = []
        self.patch(sys, 'unraisablehook', unraisable.append)
        self.assertRaises(TypeError, filelock.NodeLock, 7.5)
        gc.collect()
        self.assertEqual([], unraisable)

    def test_a_directory_that_is_missing_is_the_callers_mistake(self):
        lock = filelock.FileLock(os.path.join(self.temp_dir(), 'missing', 'lock'))
        self.assertRaises(FileNotFoundError, lock.acquire)

    def test_a_file_that_was_removed_or_replaced_while_somebody_waited_is_not_the_lock(self):
        first, second = self.lock(), self.lock()
        first.acquire()
        os.rename(self.path, f'{self.path}.old')

        def opened_before(path):
            second._open = filelock.FileLock._open          # the next time it opens what is there
            first.release()
            return os.open(f'{path}.old', os.O_RDWR)

        second._open = opened_before
        second.acquire()
        self.assertTrue(os.path.samestat(os.fstat(second.fd), os.stat(self.path)))
        self.assertRaises(filelock.FileLocked, self.lock().acquire)

    def test_a_file_that_others_can_change_is_refused_and_nothing_is_locked(self):
        target = os.path.join(self.temp_dir(), 'target')
        for make, says in ((lambda: os.symlink(target, self.path), 'symbolic link'),
                           (lambda: os.mkfifo(self.path), 'not a regular file'),
                           (lambda: os.mkdir(self.path), 'not a regular file'),
                           (self.writable_by_others, 'chmod go-w'),
                           (self.of_somebody_else, 'belongs to user 65534')):
            make()
            error = self.assertRaises(ownfiles.NotOurs, self.lock().acquire)
            self.assertEqual(self.path, error.filename)
            self.assertIn(says, error.strerror)
            os.rename(self.path, os.path.join(self.temp_dir(), 'away'))
        self.assertFalse(os.path.exists(target))

    def writable_by_others(self):
        with open(self.path, 'w'):
            os.chmod(self.path, 0o620)

    def of_somebody_else(self):
        with open(self.path, 'w'):
            os.chown(self.path, 65534, -1)
