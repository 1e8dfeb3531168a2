'use strict';
/* Draws the hosts of a page of many hosts from the data in it, and filters them. Every text becomes a text node. */
(async () => {
  const COLUMNS = 20, MOST_SQUARES = 64, FEW_HOSTS = 150, CUT = '…', SVG = 'http://www.w3.org/2000/svg';
  const at = (id) => document.getElementById(id);
  const made = (name, properties, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  const drawn = (name, attributes, ...children) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const mark = (state) => drawn('svg', {class: 'mark', 'aria-hidden': 'true'}, drawn('use', {href: `#s-${state}`}));
  const number = (count) => count.toLocaleString('en');
  const many = (count, noun) => `${number(count)} ${noun}${count === 1 ? '' : 's'}`;

  // -- the data: fleet.py writes it

  const decoded = (text) => {
    const values = new Uint32Array(128), bytes = new Uint8Array(text.length / 5 * 4);
    [...'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=>?@^_`{|}~'].forEach((one, value) => {
      values[one.charCodeAt(0)] = value;
    });
    for (let from = 0, to = 0; from < text.length; from += 5) {
      let word = 0;
      for (let i = 0; i < 5; i++) word = word * 85 + values[text.charCodeAt(from + i)];
      bytes[to++] = word >>> 24;
      bytes[to++] = word >>> 16;
      bytes[to++] = word >>> 8;
      bytes[to++] = word;
    }
    return bytes;
  };
  const data = at('data'), bytes = decoded(data.textContent);
  const [packed, first, , ofSpare] = data.dataset.lengths.split(' ').map(Number);
  const unpacked = new Blob([bytes.subarray(0, packed)]).stream().pipeThrough(new DecompressionStream('deflate'));
  const lines = (await new Response(unpacked).text()).trimEnd().split('\n');
  const {states, link} = JSON.parse(lines.shift());
  // Where there was no room for all of a UUID, only its beginning is there.
  const uuid = ({place, size}) => Array.from(bytes.subarray(place, place + size), (one, i) =>
    ([4, 6, 8, 10].includes(i) ? '-' : '') + one.toString(16).padStart(2, '0')).join('') + (size < 16 ? CUT : '');

  let next = packed, spare = packed + first;
  const hosts = lines.map((line) => {
    const [name, group, age, since, release, words, runs, marks, names, owners, serials, amounts, whys, found] = JSON.parse(line);
    // Only the place of a UUID is kept: most are never looked at.
    const column = (values) => {
      const known = [];
      return values.map((value) => {
        if (value === 0) return null;
        if (value > 0) return known[value - 1];
        known.push(value === -1 ? {place: next, size: 16} : value === -2 ? {place: spare, size: ofSpare} : value);
        if (value === -1) next += 16; else if (value === -2) spare += ofSpare;
        return known.at(-1);
      });
    };
    const host = {name, group, age, since, release, words, runs, names: column(names), owners: column(owners),
      serials: column(serials), amounts: new Map(amounts), whys: new Map(whys), found: new Map(found)};
    host.states = Array.from(marks, (one) => states[one]);
    host.keys = runs.flatMap(([kind, parent, , , count]) => Array(count).fill(`${kind}\n${parent}`));
    host.amount = (line) => host.amounts.get(line) ?? 1;
    host.isRoom = (line) => host.states[line] === 'creatable' && host.names[line] === null;
    return host;
  });
  const plain = (value) => value === null || value === undefined ? '' : typeof value === 'string' ? value : uuid(value);

  const devicesOf = (host) => {
    if (host.devices) return host.devices;
    host.devices = [];
    for (const [kind, parent, of, numa, count] of host.runs) {
      for (let i = 0; i < count; i++) {
        const line = host.devices.length;
        const device = {line, kind, parent, of, numa, state: host.states[line], isNamed: host.names[line] !== null,
          isRoom: host.isRoom(line), name: plain(host.names[line]), owner: plain(host.owners[line]), serial: plain(host.serials[line]),
          amount: host.amount(line), why: host.whys.get(line) ?? '', critical: host.found.get(line) ?? ''};
        device.text = [nameOf(host), kind, parent, of, device.name, device.owner, device.serial, device.why,
          device.critical && 'critical', device.critical].join('\n').toLowerCase();
        host.devices.push(device);
      }
    }
    return host.devices;
  };
  const nameOf = (host) => [host.name, groups[host.group], host.words, host.release].join('\n').toLowerCase();

  /* The squares of a host, each with the number of its line; -1 is a gap between parents. Of the types of a parent only one
     shows what the parent can still make: they share its room. */
  const squaresOf = (host) => {
    if (host.squares) return host.squares;
    const largest = new Map();
    host.keys.forEach((key, line) => {
      if (host.isRoom(line) && !(host.amount(line) <= (largest.has(key) ? host.amount(largest.get(key)) : NaN))) largest.set(key, line);
    });
    host.squares = [];
    host.keys.forEach((key, line) => {
      const count = !host.isRoom(line) ? 1 : largest.get(key) === line ? Math.min(host.amount(line), MOST_SQUARES) : 0;
      if (line && key !== host.keys[line - 1] && host.squares.length % COLUMNS) host.squares.push(-1);
      for (let i = 0; i < count; i++) host.squares.push(line);
    });
    return host.squares;
  };

  /* How many devices of each state some lines of a host are, as "fleet host list" counts them. */
  const sums = (host, lines) => {
    const counts = new Map(states.map((state) => [state, 0])), room = new Map();
    for (const line of lines) {
      const state = host.states[line], key = host.keys[line];
      if (host.isRoom(line)) room.set(key, Math.max(room.get(key) ?? 0, host.amount(line)));
      else if (host.names[line] !== null && (host.amount(line) || state === 'missing')) counts.set(state, counts.get(state) + 1);
    }
    for (const one of room.values()) counts.set('creatable', counts.get('creatable') + one);
    return [...counts].filter(([, count]) => count);
  };

  // -- pictures: each state has its own pattern of nine points, so that it differs in more than colour

  const PATTERNS = {held: '111111111', free: '111101111', creatable: '101000101', releasing: '100110111', withheld: '101010101',
    missing: '010010010', observed: '010101010', unknown: '000010000'};
  const POINTS = Object.fromEntries(Object.entries(PATTERNS).map(([state, pattern]) => {
    const steps = state === 'held' ? ['h.75v.75h-.75z'] : [];
    for (let i = 0, x = 0, y = 0; i < 9 && state !== 'held'; i++) {
      if (pattern[i] === '0') continue;
      steps.push(`m${(i % 3 - x) / 4} ${(Math.floor(i / 3) - y) / 4}h.25v.25h-.25z`);
      [x, y] = [i % 3, Math.floor(i / 3)];
    }
    return [state, steps.join('')];
  }));

  const paint = (tile) => {
    const {host, matching} = tile, squares = squaresOf(host), paths = new Map();
    const shown = new Set(matching ?? []), rooms = new Set((matching ?? []).filter(host.isRoom).map((line) => host.keys[line]));
    const add = (key, path) => paths.set(key, (paths.get(key) ?? '') + path);
    squares.forEach((line, i) => {
      if (line < 0) return;
      const x = i % COLUMNS, y = Math.floor(i / COLUMNS), state = host.states[line];
      const isDim = matching !== null && !shown.has(line) && !(host.isRoom(line) && rooms.has(host.keys[line]));
      if (host.found.has(line)) add(isDim ? 'critical frame dim' : 'critical frame', `M${x - .25} ${y - .25}h1.25v1.25h-1.25zM${x} ${y}v.75h.75v-.75z`);
      add(isDim ? `${state} dim` : state, `M${x} ${y}${POINTS[state]}`);
    });
    tile.picture.replaceChildren(...[...paths].map(([key, d]) => drawn('path', {class: key, d})));
    tile.isPainted = true;
  };

  const said = (host, one) => [one.state, one.isNamed ? `${one.kind} ${one.name}`.trim() : one.isRoom ? `${one.amount} more of ${one.of ?? one.kind}`
    : `parent ${one.parent}`, one.isNamed && one.of, one.parent && one.isNamed && `of ${one.parent}`, one.owner && `for ${one.owner}`,
    one.serial && `serial ${one.serial}`, one.why, one.critical && `critical: ${one.critical}`].filter(Boolean).join(', ');

  // -- the page

  const groups = Array.from(document.querySelectorAll('.rack'), (one) => one.dataset.name);
  const sections = Array.from(document.querySelectorAll('.rack'), (section) => {
    const list = made('ul', {className: 'tiles'});
    section.append(list);
    return {section, list};
  });
  const watcher = new IntersectionObserver((seen) => {
    for (const one of seen) {
      const tile = byItem.get(one.target);
      if (one.isIntersecting && !tile.isPainted) paint(tile);
    }
  }, {rootMargin: '800px'});
  const byItem = new Map();
  const tiles = hosts.map((host) => {
    const squares = squaresOf(host), rows = Math.max(1, Math.ceil(squares.length / COLUMNS));
    const picture = drawn('svg', {class: 'grid', viewBox: `-.25 -.25 ${COLUMNS + .25} ${rows + .25}`, 'aria-hidden': 'true'});
    const counts = made('span', {className: 'sums'}), age = host.since ? `unknown since ${host.since.slice(0, 16).replace('T', ' ')}` : host.age;
    const button = made('button', {type: 'button'}, made('b', {}, host.name), picture, counts, made('span', {className: 'age'}, age));
    if (host.words) button.querySelector('b').prepend(mark(host.since ? 'unknown' : 'critical'));
    const item = made('li', {className: `tile${host.since ? ' silent' : ''}${host.words && !host.since ? ' critical' : ''}`}, button);
    const tile = {host, button, picture, counts, item, matching: null, isPainted: false};
    byItem.set(item, tile);
    button.addEventListener('click', () => open(tile));
    picture.addEventListener('pointermove', (event) => {
      const box = picture.getBoundingClientRect(), size = box.width / (COLUMNS + .25);
      const place = Math.floor((event.clientY - box.top) / size - .25) * COLUMNS + Math.floor((event.clientX - box.left) / size - .25);
      button.title = squares[place] >= 0 ? said(host, devicesOf(host)[squares[place]]) : host.words;
    });
    watcher.observe(item);
    sections[host.group].list.append(item);
    return tile;
  });

  // A whole UUID finds what begins like it, if the page has only the beginning.
  const has = (device, word) => ofSpare < 16 && UUID.test(word) && device.text.includes(word.slice(0, 2 * ofSpare) + CUT);
  const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

  const show = () => {
    const words = at('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = words.filter((word) => states.includes(word)), others = words.filter((word) => !states.includes(word));
    const all = new Map();
    let visible = 0, devices = 0;
    for (const tile of tiles) {
      const {host} = tile;
      tile.matching = words.length ? devicesOf(host).filter((one) => (!wanted.length || wanted.includes(one.state))
        && others.every((word) => one.text.includes(word) || has(one, word))).map((one) => one.line) : null;
      const isShown = !words.length || tile.matching.length > 0
        || !host.keys.length && !wanted.length && others.every((word) => nameOf(host).includes(word));
      const counts = sums(host, tile.matching ?? host.keys.keys());
      tile.item.hidden = !isShown;
      tile.isPainted = false;
      tile.counts.replaceChildren(...counts.map(([state, count]) => made('span', {className: state, title: state}, mark(state), made('span', {className: 'unseen'}, state), ` ${number(count)}`)));
      visible += isShown;
      for (const [state, count] of isShown ? counts : []) {
        all.set(state, (all.get(state) ?? 0) + count);
        devices += state === 'creatable' ? 0 : count;
      }
    }
    at('main').classList.toggle('dense', visible > FEW_HOSTS);
    sections.forEach(({section, list}) => { section.hidden = !list.querySelector('li:not([hidden])'); });
    at('found').textContent = words.length ? `${number(visible)} of ${many(hosts.length, 'host')}, ${many(devices, 'device')}`
      + [...states].filter((state) => all.get(state)).map((state, i) => `${i ? ',' : ':'} ${number(all.get(state))} ${state}`).join('') : '';
    for (const {item} of tiles) {
      watcher.unobserve(item);
      watcher.observe(item);
    }
  };

  const open = ({host, matching}) => {
    const shown = matching === null ? devicesOf(host) : matching.map((line) => devicesOf(host)[line]), parents = new Map();
    for (const one of shown) {
      const key = `${one.kind}\n${one.parent}`;
      parents.set(key, [...parents.get(key) ?? [], one]);
    }
    const line = (label, text, className = 'mono') => made('div', {className: 'line'}, made('span', {className: 'label'}, label),
      made('span', {className}, text));
    const field = (one) => {
      const head = made('span', {className: 'state'}, mark(one.state), one.state);
      const name = one.isNamed ? made('span', {className: 'id'}, one.name || one.kind)
        : made('span', {className: 'words'}, one.isRoom ? `${number(one.amount)} more of ${one.of ?? one.kind}` : 'the whole parent');
      const more = [one.critical && made('div', {className: 'line critical'}, made('span', {className: 'state'}, mark('critical'), 'critical'),
        made('span', {className: 'words'}, one.critical)), one.owner && line('for', one.owner),
        one.serial && line('serial', one.serial), one.why && line('why', one.why, 'words')].filter(Boolean);
      const size = more.length ? '' : one.name.length <= 6 ? ' tiny' : one.name.length <= 14 ? ' small' : '';
      return made('li', {className: `field ${one.state}${size}${one.critical ? ' alarming' : ''}`}, made('div', {className: 'line'}, head, name), ...more);
    };
    const facts = [host.since ? '' : host.age && `as it was ${host.age}`, host.release && `devicetrack ${host.release}`,
      shown.length < devicesOf(host).length && `${number(shown.length)} of ${number(host.devices.length)} lines match the filter`].filter(Boolean);
    at('host').replaceChildren(
      made('h2', {}, host.name), made('p', {className: 'told'}, facts.join(', ')), ...host.words ? [made('p', {className: 'wrong'}, host.words)] : [],
      ...link === null ? [] : [made('p', {}, made('a', {href: link.replaceAll('{host}', encodeURIComponent(host.name))}, 'The map of this host'))],
      ...[...parents.values()].map((some) => made('section', {className: 'parent'}, made('header', {},
        made('h3', {className: some[0].parent ? 'mono' : ''}, some[0].parent ?? some[0].kind), made('p', {className: 'told'},
          [...new Set([some[0].parent && some[0].kind, ...some.map((one) => one.of), ...some.map((one) => one.numa === null ? null : `NUMA node ${one.numa}`)])].filter(Boolean).join(', '))),
        made('ul', {className: 'fields'}, ...some.map(field)))));
    at('panel').showModal();
    at('panel').scrollTop = 0;
  };

  let waiting = 0;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(show, 150);
  };
  const follow = () => {
    at('filter').value = new URLSearchParams(location.hash.slice(1)).get('q') ?? '';
    show();
  };
  at('filter').addEventListener('input', soon);
  at('close').addEventListener('click', () => at('panel').close());
  at('panel').addEventListener('click', (event) => { if (event.target === at('panel')) at('panel').close(); });
  for (const one of document.querySelectorAll('.attention a')) {
    one.addEventListener('click', (event) => {
      event.preventDefault();
      at('filter').value = one.textContent;
      show();
      at('filter').focus();
    });
  }
  window.addEventListener('hashchange', follow);
  window.addEventListener('beforeprint', () => tiles.forEach((tile) => tile.isPainted || paint(tile)));
  at('tools').hidden = false;
  at('needs').hidden = true;
  follow();
})();
