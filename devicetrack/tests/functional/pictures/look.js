/* What a person would stumble over on a page, as a list of sentences. Evaluated in the page by look.py. */
(() => {
  const found = [];
  const say = (what, text) => found.push(`${what}: ${JSON.stringify(text.trim().slice(0, 60))}`);
  const width = document.documentElement.clientWidth;

  // Parts of colours as numbers, by a canvas: it knows every form that a style may have.
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const parts = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return Array.from(canvas.getImageData(0, 0, 1, 1).data);
  };
  const paper = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parts(getComputedStyle(element).backgroundColor);
      if (colour[3] === 255) return colour;
      if (colour[3] !== 0) return null;
    }
    return [255, 255, 255, 255];
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };

  // A dialog is before everything else, and what is in it may scroll.
  const root = document.querySelector('dialog[open]') ?? document.body;
  const texts = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest('.unseen, .skip, script, style')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = Array.from(range.getClientRects()).filter((box) => box.width > 0 && box.height > 0);
    if (!boxes.length || getComputedStyle(element).visibility !== 'visible') continue;
    texts.push({node, element, boxes, scrolls: element.closest('.heat')});
  }
  if (!texts.length) found.push('there is no text at all');
  if (document.documentElement.scrollWidth > width) found.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${width}`);

  for (const {node, element, boxes, scrolls} of texts) {
    for (const box of boxes) {
      if (!scrolls && (box.left < -0.5 || box.right > width + 0.5)) say('out of the window', node.data);
      for (let outer = element; outer && outer !== root && !(scrolls && outer === scrolls); outer = outer.parentElement) {
        const style = getComputedStyle(outer);
        if (style.display === 'inline' || style.display === 'contents') continue;
        const around = outer.getBoundingClientRect();
        if (box.left < around.left - 1 || box.right > around.right + 1 || box.top < around.top - 3 || box.bottom > around.bottom + 3) {
          say(`sticks out of ${outer.tagName.toLowerCase()}.${outer.className}`, node.data);
          break;
        }
      }
    }
    const behind = paper(element), colour = parts(getComputedStyle(element).color);
    const ratio = behind === null ? 0 : contrast(colour, behind);
    if (ratio < 4.5) say(`contrast ${ratio.toFixed(2)}`, node.data);
    if (parseFloat(getComputedStyle(element).fontSize) < 11) say('too small', node.data);
  }
  const overlap = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
    && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 3;
  const stands = (text) => text.scrolls && text.element.closest('tbody th');       // it stays when the others scroll
  for (let i = 0; i < texts.length; i++) {
    for (let j = i + 1; j < texts.length; j++) {
      if (stands(texts[i]) || stands(texts[j])) continue;
      if (texts[i].boxes.some((one) => texts[j].boxes.some((other) => overlap(one, other)))) {
        say(`over ${JSON.stringify(texts[i].node.data.trim().slice(0, 40))}`, texts[j].node.data);
      }
    }
  }
  const blocks = Array.from(root.querySelectorAll('.field, .findings li, .reasons li, .heat td, .tile')).map((one) => [one, one.getBoundingClientRect()]);
  for (let i = 0; i < blocks.length; i++) {
    for (let j = i + 1; j < blocks.length; j++) {
      if (overlap(blocks[i][1], blocks[j][1])) say('boxes overlap', blocks[i][0].textContent);
    }
  }
  return found;
})()
