# make demo    boot guests that race for devices, kill the service, see that nothing is lost
# make test    unit and functional tests
# make thorough-test  the tests that search, kill, hang or repeat, which make test leaves out
# make quick   the tests that need no server and no daemon, for while one works
# make crash-test  kill a service at every step of everything it does, on three databases
# make host-test   the library on real compute hosts: virtual machines with namespaces and mediated devices
# make cloud-test  Nova's services, two compute hosts, and what operations of Nova lose (ARGS='[--write] [REGEX]')
# make debian-test  the packages of Debian 13: install by the guide's own commands, adopt two guests, go back
# make nova-test  ours in one process with Nova, and Nova's own suites with the adapter and without (ARGS='34 --all')
# make mutation-test  change the code in one place at a time, and see whether a test fails: what the tests prove
# make model-check  every order of operations and crashes up to a depth (DEPTH=n), each mutant of it found
# make nova-seams  what Nova's releases changed of what the adapter uses (ARGS='[--write] [--against RELEASE] RELEASE …')
# make corpus  other people's domain documents, read by us and by an independent reader (ARGS=DIRECTORY)
# make bench   the table of speeds
# make bench-nova  the adapter beside Nova's own code
# make docs    the documentation, into doc/build/html and releasenotes/build/html
# make dist    the archive and the wheel of a release, installed and checked, and the packages that come along, into dist
# make deb     packages for Debian 13, checked, into dist/debian
# make lint    ruff, hacking, mypy
# make setup   what all of these do first: packages, .venv; needed by none of them
# make clean   remove what was made here; distribution packages stay
#
# Each step of the set-up leaves a stamp in .venv and is repeated only when what it was made from
# has changed.

VENV = .venv
BIN = $(VENV)/bin
EXTRAS = libvirt,metrics,pictures,placement,test
ARGS =
DEPTH =

.PHONY: help demo test thorough-test quick bench-nova crash-test host-test cloud-test debian-test nova-test model-check mutation-test nova-seams corpus bench dist deb docs lint setup clean
.NOTPARALLEL:

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(VENV)/.made: tools/as-root tools/find-python tools/make-venv
	tools/make-venv $(VENV)
	@touch $@

$(VENV)/.packages: $(VENV)/.made bindep.txt tools/install-packages
	tools/install-packages $(BIN)/bindep libvirt
	@touch $@

$(VENV)/.packages-test: $(VENV)/.packages
	tools/without-services tools/install-packages $(BIN)/bindep test
	@touch $@

$(VENV)/.packages-docs: $(VENV)/.packages
	tools/install-packages $(BIN)/bindep docs
	@touch $@

$(VENV)/.packages-host: $(VENV)/.packages
	tools/install-packages $(BIN)/bindep host
	@touch $@

$(VENV)/.packages-cloud: $(VENV)/.packages-test $(VENV)/.packages-host
	tools/without-services tools/install-packages $(BIN)/bindep cloud
	@touch $@

$(VENV)/.installed: $(VENV)/.packages setup.cfg pyproject.toml
	$(BIN)/pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

setup: $(VENV)/.installed $(VENV)/.packages-test

demo: $(VENV)/.installed
	$(BIN)/python examples/demo/main.py $(ARGS)

# An editable package is the same after every change of the code: there is nothing to build anew.
.tox/py3/.made: $(VENV)/.packages setup.cfg pyproject.toml tox.ini
	$(BIN)/tox run -e py3 --notest
	@touch $@

test: .tox/py3/.made $(VENV)/.packages-test
	$(BIN)/tox run -e py3 --skip-pkg-install -- --exclude-list devicetrack/tests/thorough.txt

# A repository of its own: its last run is not the last run of the others.
thorough-test: .tox/py3/.made $(VENV)/.packages-test
	mkdir -p .stestr-thorough
	DEVICETRACK_TEST_REPOSITORY=.stestr-thorough $(BIN)/tox run -e py3 --skip-pkg-install -- \
	    --include-list devicetrack/tests/thorough.txt

# These tests hardly wait, so there is a worker for each processor. Every class is a group, which balances them.
quick: .tox/py3/.made
	$(BIN)/tox run -e py3 --skip-pkg-install -- --exclude-list devicetrack/tests/not_quick.txt \
	    --concurrency 0 --group-regex '([^.(]+[.])+'

model-check: $(VENV)/.installed
	$(BIN)/python -m devicetrack.tests.model $(DEPTH)

mutation-test: $(VENV)/.packages-test
	$(BIN)/tox run -e mutation -- $(ARGS)

crash-test: $(VENV)/.installed $(VENV)/.packages-test
	$(BIN)/python -m devicetrack.tests.crash $(ARGS)

host-test: $(VENV)/.installed $(VENV)/.packages-host
	$(BIN)/python -m devicetrack.tests.host $(ARGS)

cloud-test: $(VENV)/.packages-cloud
	$(BIN)/tox run -e cloud -- $(ARGS)

debian-test: $(VENV)/.installed $(VENV)/.packages-host
	$(BIN)/python -m devicetrack.tests.debian $(ARGS)

NOVA = $(firstword $(filter 31 33 34,$(ARGS)) 34)

nova-test: $(VENV)/.packages
	$(BIN)/tox run -e nova-$(NOVA) -- $(filter-out 31 33 34,$(ARGS))

nova-seams: $(VENV)/.packages
	$(BIN)/tox run -e nova-seams -- $(ARGS)

corpus: $(VENV)/.installed
	$(BIN)/python -m devicetrack.tests.corpus $(ARGS)

bench: $(VENV)/.installed $(VENV)/.packages-test
	$(BIN)/python -m benchmarks $(ARGS)

bench-nova: $(VENV)/.installed $(VENV)/.packages-test
	$(BIN)/tox run -e nova-34 --notest
	OS_NOVA_DISABLE_EVENTLET_PATCHING=true .tox/nova-34/bin/python -W ignore -c 'import nova.tests.functional, runpy; \
	    runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)' nova

docs: $(VENV)/.packages-docs
	$(BIN)/tox run -e docs

dist: $(VENV)/.made
	$(BIN)/tox run -e dist

deb: $(VENV)/.installed $(VENV)/.packages-host
	$(BIN)/python -m devicetrack.tests.debian.package

lint: $(VENV)/.packages
	$(BIN)/tox run -e lint

clean:
	rm -rf $(VENV) .tox .stestr .stestr-host .stestr-nova .stestr-nova-suites .cloud-test .mypy_cache .ruff_cache .hypothesis .mutation cover .coverage*
	rm -rf build dist devicetrack.egg-info doc/build releasenotes/build
	rm -f etc/devicetrack/devicetrack.conf.sample doc/source/_static/devicetrack.conf.sample doc/source/_static/demo-host.*
